"""Text as it comes: nothing is lost, no character is cut, and no stop string shows."""

import re
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import UserError
from qkv.text import TextStream, Tokenizer, cut_at_stop
from tests.text.conftest import KINDS
from tests.text.foreign import gpt2

Trained = Callable[[str], Tokenizer]
Case = tuple[list[int], list[int], list[str]]

FAMILY, FLAG, OTHER_FLAG = "👩\u200d👩\u200d👧\u200d👦", "🇩🇪", "🇨🇳"
SCOTLAND = "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
EMOJI = (
    *(FAMILY, FLAG, OTHER_FLAG, SCOTLAND, "👍🏽", "👩🏽\u200d🚀"),
    *("❤\ufe0f", "1\ufe0f\u20e3", "😀", "‼\ufe0f"),
)
MARKED = ("السَّلَامُ", "שָׁלוֹם", "नमस्ते", "กำลัง")
PLAIN = (
    *("the cat", " ", "  ", "我爱你", "，", "Straße", "\n\n", "ŵ"),
    *("こんにちは", "한국", "##", "e\u0301", "葛\U000e0100"),
)
SNIPPETS = (*EMOJI, *MARKED, *PLAIN)
GENERAL = tokenizers.decoders
BYTE_FALLBACK = GENERAL.Sequence(
    [GENERAL.Replace("▁", " "), GENERAL.ByteFallback(), GENERAL.Fuse(), GENERAL.Strip(" ", 1, 0)]
)


@pytest.fixture(scope="module")
def named(trained: Trained, shared_data: Path) -> Trained:
    """Hand out a tokenizer of a kind of ours, or GPT-2's."""
    byte_level = Tokenizer(gpt2(shared_data / "tokenizers"))
    return lambda kind: byte_level if kind == "gpt2" else trained(kind)


def stream(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str] = (), sizes: Sequence[int] = (1,)
) -> tuple[list[str], bool]:
    """Push ids in parts of the given sizes, over and over; the pieces, and whether it stopped."""
    made, pieces, start = TextStream(tokenizer, stops), [], 0
    while start < len(ids):
        for size in sizes:
            pieces.append(made.push(ids[start : start + size]))
            start += size
    return [*pieces, made.finish()], made.stopped


def expected(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """What `decode` says, once each byte that is part of no character is spelt as U+FFFD."""
    first = 4  # our byte pieces come right after the special tokens
    if tokenizer.tokens([first + 0x80]) != ["<0x80>"]:
        return tokenizer.decode(ids)
    texts = [id for id in ids if first <= id < len(tokenizer)]
    mended: list[int] = []
    for is_bytes, run in groupby(texts, lambda id: id < first + 256):
        if is_bytes:
            text = bytes(id - first for id in run).decode("utf-8", "surrogateescape")
            valid = re.sub("[\udc80-\udcff]", "\ufffd", text).encode()
            mended += [first + byte for byte in valid]
        else:
            mended += run
    return tokenizer.decode(mended)


def cut(text: str, stops: Sequence[str]) -> str:
    return text[: min([text.find(stop) for stop in stops if stop in text], default=len(text))]


@st.composite
def cases(draw: st.DrawFn, tokenizer: Tokenizer) -> Case:
    """Ids of text and at random (bytes often), sizes of the parts, and stops that may occur."""
    parts = draw(st.lists(st.sampled_from(SNIPPETS), max_size=6))
    ids = tokenizer.encode("".join(parts))
    noise = st.one_of(st.integers(0, 300), st.integers(0, len(tokenizer) - 1))
    for _ in range(draw(st.sampled_from((0, 0, 1, 4, 12)))):
        ids.insert(draw(st.integers(0, len(ids))), draw(noise))
    if draw(st.booleans()):
        ids = ids[draw(st.integers(0, 2)) : len(ids) - draw(st.integers(0, 2))]
    text = tokenizer.decode(ids)
    stops = ["zzz"]
    for _ in range(draw(st.integers(0, 3))):
        start, size = draw(st.integers(0, len(text))), draw(st.integers(1, 5))
        stops.append((text[start : start + size] or "a") + draw(st.sampled_from(("", "", "a"))))
    return ids, draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)), stops


def check(tokenizer: Tokenizer, case: Case) -> None:
    ids, sizes, stops = case
    whole = expected(tokenizer, ids)
    assert "".join(stream(tokenizer, ids, sizes=sizes)[0]) == whole
    pieces, stopped = stream(tokenizer, ids, stops, sizes)
    assert "".join(pieces) == cut(whole, stops)
    assert stopped is any(stop in whole for stop in stops)
    used, text, found = cut_at_stop(tokenizer, ids, stops)
    assert (text, found) == ("".join(pieces), stopped)
    assert used == ids[: len(used)]


@pytest.mark.parametrize("kind", [*KINDS, "gpt2"])
@given(data=st.data())
@settings(max_examples=100)
def test_the_pieces_make_up_the_text_before_the_earliest_stop(
    data: st.DataObject, kind: str, named: Trained
) -> None:
    check(named(kind), data.draw(cases(named(kind))))


@pytest.mark.parametrize("kind", [*KINDS, "gpt2"])
@given(before=st.lists(st.sampled_from(PLAIN)), after=st.lists(st.sampled_from(PLAIN)))
@settings(max_examples=50)
def test_after_other_ids_it_is_what_these_add(
    before: list[str], after: list[str], kind: str, named: Trained
) -> None:
    tokenizer = named(kind)
    ids, more = tokenizer.encode("".join(before)), tokenizer.encode("".join(after))
    whole, added = tokenizer.decode(ids + more), TextStream(tokenizer, after=ids)
    assert tokenizer.decode(ids) + added.push(more) + added.finish() == whole
    assert tokenizer.decode(ids) + cut_at_stop(tokenizer, more, ["zzz"], ids)[1] == whole


def test_a_prompt_that_ends_inside_a_character_is_not_shown_again(named: Trained) -> None:
    for kind in ("byte", "gpt2"):
        tokenizer = named(kind)
        ids = tokenizer.encode("ab\ue000")[:-1]
        added = TextStream(tokenizer, after=ids)
        assert added.push(tokenizer.encode(" the")) + added.finish() == " the"


@given(text=st.text(st.characters(exclude_categories=("Cs", "Cn"))))
def test_any_text_comes_whole(text: str, byte_kind: str, trained: Trained) -> None:
    tokenizer = trained(byte_kind)
    ids = tokenizer.encode(text)
    assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte", "char", "bpe", "gpt2"])
@given(parts=st.lists(st.sampled_from((*EMOJI, *MARKED, "我", "a", " ")), max_size=8))
def test_no_piece_ends_inside_a_character(parts: list[str], kind: str, named: Trained) -> None:
    tokenizer = named(kind)
    text = "".join(parts)
    pieces, _ = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert set(accumulate(map(len, pieces))) <= boundaries(text)


def boundaries(text: str) -> set[int]:
    """Where characters end, by cutting whole emoji and letters with their marks off the text."""
    emoji = "|".join(sorted(map(re.escape, EMOJI), key=len, reverse=True))
    # of Hebrew and Arabic, of Devanagari, and of Thai
    marks = "[\u05b0-\u05c7\u064b-\u0652\u093e-\u094d\u0e31\u0e34-\u0e4e]"
    return {0, *(match.end() for match in re.finditer(f"{emoji}|.{marks}*", text, re.DOTALL))}


def test_plain_letters_come_at_once_and_emoji_when_they_are_over(trained: Trained) -> None:
    tokenizer = trained("byte")
    pieces, _ = stream(tokenizer, tokenizer.encode("ab我é" + FAMILY + "c" + FLAG + OTHER_FLAG))
    assert [piece for piece in pieces if piece] == (
        ["a", "b", "我", "é", FAMILY + "c", FLAG, OTHER_FLAG]
    )
    pieces, _ = stream(tokenizer, tokenizer.encode("x1\ufe0f\u20e3 ❤\ufe0f!"))
    assert [piece for piece in pieces if piece] == ["x", "1\ufe0f\u20e3 ", "❤\ufe0f!"]


def test_a_character_that_is_cut_off_is_shown_as_such_at_the_end(named: Trained) -> None:
    for tokenizer, marks in ((named("byte"), 2), (named("gpt2"), 1)):  # as the library counts
        ids = tokenizer.encode("ab\ue000")
        ids = ids[: len(ids) - 1]
        assert stream(tokenizer, ids)[0][-1] == "\ufffd" * marks
        assert tokenizer.decode(ids).endswith("\ufffd" * marks)


def test_a_byte_of_no_character_spoils_no_other(trained: Trained) -> None:
    tokenizer = trained("byte")
    ids = [*tokenizer.encode("我"), 4 + 0xFF, 4 + 0xE6, *tokenizer.encode("爱")]
    assert "".join(stream(tokenizer, ids)[0]) == "我\ufffd\ufffd爱"
    assert set(tokenizer.decode(ids)) == {"\ufffd"}  # where the library loses all of it


def test_the_space_before_a_first_word_goes_and_no_other(kind: str, trained: Trained) -> None:
    tokenizer = trained(kind)
    for text in ("the cat", " the cat", "  the"):
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        assert "".join(stream(tokenizer, ids)[0]) == text
    vocabulary = tokenizer.tokens(range(len(tokenizer)))
    for id in [id for id, piece in enumerate(vocabulary) if piece == "▁"]:  # as a byte, and as " "
        ids = [id] * 3 + tokenizer.encode("the 我")
        assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("decoder", "pieces"),
    [
        (GENERAL.Metaspace(), ["▁the", "▁c", "at", "▁", "▁the"]),
        (GENERAL.WordPiece(), ["the", "c", "##at", ".", "the", "##at"]),
        (GENERAL.BPEDecoder(), ["the</w>", "c", "at</w>", "the</w>"]),
        (BYTE_FALLBACK, ["<0x20>", "▁the", "<0xE6>", "<0x88>", "<0x91>", "▁c", "<0xFF>", "at"]),
        (GENERAL.ByteLevel(), ["æĪ", "ĳ", "Ġthe", "a 我", "Ĳ", "æ", "Ġthe"]),
        (None, ["the", "c", "at"]),
    ],
)
def test_the_decoders_of_others_are_followed(
    decoder: GENERAL.Decoder | None, pieces: list[str]
) -> None:
    vocabulary = {piece: id for id, piece in enumerate(dict.fromkeys(["<unk>", *pieces]))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    if decoder is not None:
        backend.decoder = decoder
    tokenizer = Tokenizer(backend)
    ids = [vocabulary[piece] for piece in pieces]
    shown, _ = stream(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)
    assert any(shown[:2])


def test_what_may_start_a_stop_is_held_until_it_is_decided(trained: Trained) -> None:
    tokenizer = trained("byte")
    made = TextStream(tokenizer, ["\n\nUser:", "END"])
    shown = [made.push([id]) for id in tokenizer.encode("aEN\n\nUseEND")]
    assert shown == ["a", "", "", "EN", "", "", "", "", "\n\nUse", "", ""]
    assert made.stopped
    assert made.push(tokenizer.encode("more")) == made.finish() == ""


def test_a_stop_that_starts_earlier_is_waited_for(trained: Trained) -> None:
    tokenizer = trained("byte")
    stops = ["bc", "abcd"]
    for text, shown, used in (("xabcdz", "x", 5), ("xabczz", "xa", 4), ("xabc", "xa", 4)):
        ids = tokenizer.encode(text)
        pieces, stopped = stream(tokenizer, ids, stops)
        assert ("".join(pieces), stopped) == (shown, True)
        assert cut_at_stop(tokenizer, ids, stops) == (ids[:used], shown, True)


def test_a_stop_inside_a_flag_does_not_cut_it_before_it_is_there(trained: Trained) -> None:
    tokenizer = trained("byte")
    made = TextStream(tokenizer, ["🇪x"])
    assert made.push(tokenizer.encode(FLAG)) == ""
    assert made.push(tokenizer.encode("y")) == FLAG + "y"


def test_the_ids_go_up_to_the_one_that_completes_the_stop(kind: str, trained: Trained) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode("the cat sat on the mat")
    used, text, found = cut_at_stop(tokenizer, ids, ["at s", "on"])
    assert (text, found) == ("the c", True)
    assert "at s" in tokenizer.decode(used)
    assert "at s" not in tokenizer.decode(used[:-1])
    assert cut_at_stop(tokenizer, ids, []) == (ids, "the cat sat on the mat", False)
    assert cut_at_stop(tokenizer, [], ["x"]) == ([], "", False)


def test_text_lags_a_few_characters_behind_at_most(kind: str, trained: Trained) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(" the cat 我爱你  " * 9)
    made, shown = TextStream(tokenizer, ["never"]), 0
    for n, id in enumerate(ids, 1):
        shown += len(made.push([0, id]))
        assert len(tokenizer.decode(ids[:n]).rstrip("\ufffd")) - shown < 10


def test_an_endless_character_does_come(trained: Trained) -> None:
    tokenizer = trained("char")
    made = TextStream(tokenizer)
    shown = [made.push(tokenizer.encode("👩\u200d")) for _ in range(100)]
    assert any(shown)
    assert "".join([*shown, made.finish()]) == "👩\u200d" * 100


def test_emoji_that_are_not_assigned_yet_are_waited_for_too(trained: Trained) -> None:
    tokenizer = trained("byte")
    pieces, _ = stream(tokenizer, tokenizer.encode("\U0001f0c0\ufe0f!"))
    assert [piece for piece in pieces if piece] == ["\U0001f0c0\ufe0f!"]


def test_an_empty_stop_is_refused_and_a_lone_string_is_one_stop(trained: Trained) -> None:
    tokenizer = trained("byte")
    with pytest.raises(UserError, match="A stop string is empty"):
        TextStream(tokenizer, ["a", ""])
    with pytest.raises(UserError, match="A stop string is empty"):
        cut_at_stop(tokenizer, [], [""])
    assert cut_at_stop(tokenizer, tokenizer.encode("abc"), "bc")[1] == "a"
