"""Text as it comes: nothing is lost, no character is cut, and no stop string shows."""

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import UserError
from qkv.text import BOS, EOS, PAD, UNK, TextFlow, Tokenizer, cut_at_stop

Trained = Callable[[str], Tokenizer]
Case = tuple[list[int], list[int], list[str]]

FAMILY, FLAG, OTHER_FLAG = "👩\u200d👩\u200d👧\u200d👦", "🇩🇪", "🇨🇳"
SCOTLAND = "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
EMOJI = (
    FAMILY,
    FLAG,
    OTHER_FLAG,
    SCOTLAND,
    "👍🏽",
    "👩🏽\u200d🚀",
    "❤\ufe0f",
    "1\ufe0f\u20e3",
    "😀",
    "‼\ufe0f",
)
MARKED = ("السَّلَامُ", "שָׁלוֹם", "नमस्ते", "กำลัง")
PLAIN = (
    "the cat",
    " ",
    "  ",
    "我爱你",
    "，",
    "Straße",
    "\n\n",
    "ŵ",
    "こんにちは",
    "한국",
    "##",
    "e\u0301",
    "葛\U000e0100",
)
SNIPPETS = (*EMOJI, *MARKED, *PLAIN)
GENERAL = tokenizers.decoders


def gpt2(folder: Path) -> Tokenizer:
    files = [str(folder / "tokenizers" / name) for name in ("gpt2_vocab.json", "gpt2_merges.txt")]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def byte_level(shared_data: Path) -> Tokenizer:
    return gpt2(shared_data)


def flow(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str] = (), sizes: Sequence[int] = (1,)
) -> tuple[list[str], bool]:
    """Push ids in parts of the given sizes, over and over; the pieces, and whether it stopped."""
    made, pieces, start = TextFlow(tokenizer, stops), [], 0
    while start < len(ids):
        for size in sizes:
            pieces.append(made.push(ids[start : start + size]))
            start += size
    return [*pieces, made.finish()], made.stopped


def expected(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """What `decode` says, once each byte that is part of no character is spelt as U+FFFD."""
    pieces = map(tokenizer._backend.id_to_token, ids)
    if tokenizer._backend.token_to_id("<0x00>") is None:
        return tokenizer.decode(ids)
    runs = groupby(
        [piece for piece in pieces if piece and piece not in (PAD, UNK, BOS, EOS)],
        lambda piece: re.fullmatch("<0x..>", piece) is not None,
    )
    mended: list[str] = []
    for is_bytes, run in runs:
        if is_bytes:
            content = bytes(int(piece[3:5], 16) for piece in run)
            text = content.decode("utf-8", "surrogateescape")
            valid = re.sub("[\udc80-\udcff]", "\ufffd", text).encode()
            mended += [f"<0x{byte:02X}>" for byte in valid]
        else:
            mended += run
    return tokenizer.decode(list(map(tokenizer._backend.token_to_id, mended)))


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
    assert "".join(flow(tokenizer, ids, sizes=sizes)[0]) == whole
    pieces, stopped = flow(tokenizer, ids, stops, sizes)
    assert "".join(pieces) == cut(whole, stops)
    assert stopped is any(stop in whole for stop in stops)
    used, text, found = cut_at_stop(tokenizer, ids, stops)
    assert (text, found) == ("".join(pieces), stopped)
    assert used == ids[: len(used)]


@given(data=st.data())
@settings(max_examples=100)
def test_the_pieces_make_up_the_text_before_the_earliest_stop(
    data: st.DataObject, kind: str, trained: Trained
) -> None:
    check(trained(kind), data.draw(cases(trained(kind))))


@given(data=st.data())
@settings(max_examples=100)
def test_the_same_of_byte_level_tokens(data: st.DataObject, byte_level: Tokenizer) -> None:
    check(byte_level, data.draw(cases(byte_level)))


@given(text=st.text(st.characters(exclude_categories=("Cs", "Cn"))))
def test_any_text_comes_whole(text: str, byte_kind: str, trained: Trained) -> None:
    tokenizer = trained(byte_kind)
    ids = tokenizer.encode(text)
    assert "".join(flow(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte", "char", "bpe", "byte level"])
@given(parts=st.lists(st.sampled_from((*EMOJI, *MARKED, "我", "a", " ")), max_size=8))
def test_no_piece_ends_inside_a_character(
    parts: list[str], kind: str, trained: Trained, request: pytest.FixtureRequest
) -> None:
    of = trained if kind != "byte level" else lambda _: request.getfixturevalue("byte_level")
    tokenizer = of(kind)
    text = "".join(parts)
    pieces, _ = flow(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    joints = joints_of(text)
    place = 0
    for piece in pieces:
        place += len(piece)
        assert place in joints, (pieces, piece)


def joints_of(text: str) -> set[int]:
    """Where characters end, by cutting whole emoji and letters with their marks off the text."""
    emoji = "|".join(sorted(map(re.escape, EMOJI), key=len, reverse=True))
    hebrew_and_arabic, indic, thai = (
        "\u05b0-\u05c7\u064b-\u0652",
        "\u093e-\u094d",
        "\u0e31\u0e34-\u0e4e",
    )
    marks = f"[{hebrew_and_arabic}{indic}{thai}]"
    return {0, *(match.end() for match in re.finditer(f"{emoji}|.{marks}*", text, re.DOTALL))}


def test_plain_letters_come_at_once_and_emoji_when_they_are_over(trained: Trained) -> None:
    tokenizer = trained("byte")
    pieces, _ = flow(tokenizer, tokenizer.encode("ab我é" + FAMILY + "c" + FLAG + OTHER_FLAG))
    assert [piece for piece in pieces if piece] == (
        ["a", "b", "我", "é", FAMILY + "c", FLAG, OTHER_FLAG]
    )
    pieces, _ = flow(tokenizer, tokenizer.encode("x1\ufe0f\u20e3 ❤\ufe0f!"))
    assert [piece for piece in pieces if piece] == ["x", "1\ufe0f\u20e3 ", "❤\ufe0f!"]


def test_a_character_that_is_cut_off_is_shown_as_such_at_the_end(
    trained: Trained, byte_level: Tokenizer
) -> None:
    for tokenizer, marks in ((trained("byte"), 2), (byte_level, 1)):  # as the library counts
        ids = tokenizer.encode("ab\ue000")
        ids = ids[: len(ids) - 1]
        assert flow(tokenizer, ids)[0][-1] == "\ufffd" * marks
        assert tokenizer.decode(ids).endswith("\ufffd" * marks)


def test_a_byte_of_no_character_spoils_no_other(trained: Trained) -> None:
    tokenizer = trained("byte")
    ids = [*tokenizer.encode("我"), 4 + 0xFF, 4 + 0xE6, *tokenizer.encode("爱")]
    assert "".join(flow(tokenizer, ids)[0]) == "我\ufffd\ufffd爱"
    assert set(tokenizer.decode(ids)) == {"\ufffd"}  # where the library loses all of it


def test_the_space_before_a_first_word_goes_and_no_other(kind: str, trained: Trained) -> None:
    tokenizer = trained(kind)
    for text in ("the cat", " the cat", "  the"):
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        assert "".join(flow(tokenizer, ids)[0]) == text
    for piece in {" ", "<0x20>"} & tokenizer._backend.get_vocab().keys():
        ids = [tokenizer._backend.token_to_id(piece)] * 3 + tokenizer.encode("the 我")
        assert "".join(flow(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("decoder", "pieces"),
    [
        (GENERAL.Metaspace(), ["▁the", "▁c", "at", "▁", "▁the"]),
        (GENERAL.WordPiece(), ["the", "c", "##at", ".", "the", "##at"]),
        (GENERAL.BPEDecoder(), ["the</w>", "c", "at</w>", "the</w>"]),
        (
            GENERAL.Sequence(
                [
                    GENERAL.Replace("▁", " "),
                    GENERAL.ByteFallback(),
                    GENERAL.Fuse(),
                    GENERAL.Strip(" ", 1, 0),
                ]
            ),
            ["<0x20>", "▁the", "<0xE6>", "<0x88>", "<0x91>", "▁c", "<0xFF>", "at"],
        ),
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
    shown, _ = flow(tokenizer, ids)
    assert "".join(shown) == tokenizer.decode(ids)
    assert any(shown[:2])


def test_what_may_start_a_stop_is_held_until_it_is_decided(trained: Trained) -> None:
    tokenizer = trained("byte")
    made = TextFlow(tokenizer, ["\n\nUser:", "END"])
    shown = [made.push([id]) for id in tokenizer.encode("aEN\n\nUseEND")]
    assert shown == ["a", "", "", "EN", "", "", "", "", "\n\nUse", "", ""]
    assert made.stopped
    assert made.push(tokenizer.encode("more")) == made.finish() == ""


def test_a_stop_that_starts_earlier_is_waited_for(trained: Trained) -> None:
    tokenizer = trained("byte")
    stops = ["bc", "abcd"]
    for text, shown, used in (("xabcdz", "x", 5), ("xabczz", "xa", 4), ("xabc", "xa", 4)):
        ids = tokenizer.encode(text)
        pieces, stopped = flow(tokenizer, ids, stops)
        assert ("".join(pieces), stopped) == (shown, True)
        assert cut_at_stop(tokenizer, ids, stops) == (ids[:used], shown, True)


def test_a_stop_inside_a_flag_does_not_cut_it_before_it_is_there(trained: Trained) -> None:
    tokenizer = trained("byte")
    made = TextFlow(tokenizer, ["🇪x"])
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


def test_the_decoder_sees_a_few_tokens_however_long_the_text(
    kind: str, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = trained(kind)
    seen: list[int] = []
    plain = Tokenizer.decode

    def noting(self: Tokenizer, ids: Sequence[int]) -> str:
        seen.append(len(ids))
        return plain(self, ids)

    monkeypatch.setattr(Tokenizer, "decode", noting)
    made = TextFlow(tokenizer, ["never"])
    for id in [0] * 50 + tokenizer.encode(" the cat 我爱你  " * 50):
        made.push([id])
        assert len(made._held) < 10
    assert max(seen) <= 3


def test_an_endless_character_does_come(trained: Trained) -> None:
    tokenizer = trained("char")
    made = TextFlow(tokenizer)
    shown = [made.push(tokenizer.encode("👩\u200d")) for _ in range(100)]
    assert any(shown)
    assert "".join([*shown, made.finish()]) == "👩\u200d" * 100


def test_emoji_that_are_not_assigned_yet_are_waited_for_too(trained: Trained) -> None:
    tokenizer = trained("byte")
    pieces, _ = flow(tokenizer, tokenizer.encode("\U0001f0c0\ufe0f!"))
    assert [piece for piece in pieces if piece] == ["\U0001f0c0\ufe0f!"]


def test_an_empty_stop_is_refused_and_a_lone_string_is_one_stop(trained: Trained) -> None:
    tokenizer = trained("byte")
    with pytest.raises(UserError, match="A stop string is empty"):
        TextFlow(tokenizer, ["a", ""])
    with pytest.raises(UserError, match="A stop string is empty"):
        cut_at_stop(tokenizer, [], [""])
    assert cut_at_stop(tokenizer, tokenizer.encode("abc"), "bc")[1] == "a"
