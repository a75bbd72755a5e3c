"""What training makes: sizes, pieces, the same result each time, and errors."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.text import BOS, EOS, PAD, UNK, Tokenizer, train_pair, train_tokenizer
from tests.text.conftest import KINDS

Trained = Callable[[str], Tokenizer]


def test_special_tokens_come_first(kind: str, trained: Trained) -> None:
    tokenizer = trained(kind)
    assert tokenizer.tokens(range(4)) == [PAD, UNK, BOS, EOS]
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    assert ids == (0, 1, 2, 3)


def test_the_vocabulary_is_at_most_as_large_as_asked(kind: str, lines: list[str]) -> None:
    sizes = {
        size: len(train_tokenizer(lines, TokenizerConfig(kind=kind, vocab_size=size)))
        for size in (260, 300, 400, 50_000)
    }
    assert all(made <= asked for asked, made in sizes.items())
    assert sizes[50_000] < 1000  # a small text supports no more
    if kind != "byte":
        assert sizes[260] < sizes[300] < sizes[50_000]


def test_each_learnt_piece_occurs_in_the_text(trained: Trained, lines: list[str]) -> None:
    for kind in ("bpe", "unigram"):
        tokenizer = trained(kind)
        pieces = tokenizer.tokens(range(260, len(tokenizer)))
        text = "\n".join(f" {line}" for line in lines).replace(" ", "▁")
        assert len(pieces) > 150
        assert [piece for piece in pieces if piece not in text] == []


def test_a_word_has_one_piece_at_the_start_and_within(trained: Trained) -> None:
    for kind in ("bpe", "unigram", "wordpiece"):
        tokenizer = trained(kind)
        assert tokenizer.tokens(tokenizer.encode("the cat")) == ["▁the", "▁cat"]
        assert tokenizer.encode("the the")[0] == tokenizer.encode("the the")[1]
    assert trained("bpe").tokens(trained("bpe").encode("中国，中国")) == ["中国", "，", "中国"]


def test_punctuation_and_digits_stay_apart_from_letters(trained: Trained) -> None:
    for kind in ("bpe", "unigram"):
        tokenizer = trained(kind)
        for piece in tokenizer.tokens(range(260, len(tokenizer))):
            letters = any(character.isalpha() for character in piece)
            assert not (letters and any(mark in piece for mark in "，。？！,.?!;<>0123456789#"))
        tokens = tokenizer.tokens(tokenizer.encode("cat, 2017"))
        assert tokens == ["▁cat", ",", "▁2", "0", "1", "7"]


def test_pieces_are_short_and_seen_more_than_once() -> None:
    clause = "一二三四五六七八九十甲乙丙丁戊己庚辛壬癸"
    for kind in ("bpe", "unigram"):
        tokenizer = train_tokenizer([clause] * 9 + ["zyx"], TokenizerConfig(kind=kind))
        pieces = tokenizer.tokens(range(260, len(tokenizer)))
        assert 1 < max(map(len, pieces)) <= 16  # merging freely, the whole clause of 20
        assert not any(piece in "▁zyx" for piece in pieces if len(piece) > 1)


def test_wordpiece_pieces_within_a_word_are_marked(trained: Trained) -> None:
    tokenizer = trained("wordpiece")
    first, *rest = tokenizer.tokens(tokenizer.encode("mats"))
    assert first.startswith("▁") and rest and all(piece.startswith("##") for piece in rest)


def test_rare_characters_are_spelt_in_bytes_when_room_is_short(lines: list[str]) -> None:
    for kind in ("bpe", "unigram", "char"):
        tokenizer = train_tokenizer(lines, TokenizerConfig(kind=kind, vocab_size=270))
        pieces = set(tokenizer.tokens(range(260, len(tokenizer))))
        assert {"▁", "t", "e"} <= pieces  # the commonest characters
        assert tokenizer.tokens(tokenizer.encode("吗")) == ["<0xE5>", "<0x90>", "<0x97>"]


def test_a_character_seen_once_in_a_long_text_is_spelt_in_bytes() -> None:
    lines = ["the cat sat on the mat"] * 500 + ["吗"]
    common = train_tokenizer(lines, TokenizerConfig(kind="bpe", vocab_size=1000))
    assert len(common.encode("吗")) == 3
    assert len(train_tokenizer(lines, TokenizerConfig(kind="char")).encode("吗")) == 1


def test_bytes_are_readable_where_they_are_ascii(trained: Trained) -> None:
    tokenizer = trained("byte")
    assert tokenizer.tokens(tokenizer.encode("a b\né")) == ["a", "▁", "b", "⏎", "<0xC3>", "<0xA9>"]


def test_a_shared_tokenizer_knows_both_sides_and_separate_ones_their_own() -> None:
    source, target = ["我爱你"] * 5, ["I love you"] * 5
    both, same = train_pair(source, target, TokenizerConfig(vocab_size=400))
    assert both is same
    assert len(both.encode("我爱你")) == 1 and len(both.encode("I love you")) == 3
    theirs, ours = train_pair(source, target, TokenizerConfig(vocab_size=400, shared=False))
    assert len(theirs.encode("我爱你")) == 1 and len(theirs.encode("love")) > 1
    assert len(ours.encode("love")) == 1 and len(ours.encode("我爱你")) > 1


def test_another_process_gives_the_same_files(lines: list[str], tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from qkv.config import TokenizerConfig\n"
        "from qkv.text import train_tokenizer\n"
        "lines = Path(sys.argv[1], 'lines').read_text(encoding='utf-8').split('\\n')\n"
        f"for kind in {KINDS}:\n"
        "    config = TokenizerConfig(kind=kind, vocab_size=450)\n"
        "    train_tokenizer(lines, config).save(Path(sys.argv[1], kind))\n"
    )
    (tmp_path / "lines").write_text("\n".join(lines), encoding="utf-8")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    for kind in KINDS:
        here = tmp_path / "here"
        train_tokenizer(iter(lines), TokenizerConfig(kind=kind, vocab_size=450)).save(here)
        assert here.read_bytes() == (tmp_path / kind).read_bytes()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "char"])
@pytest.mark.parametrize("nothing", [[], ["", "  ", "\t"]])
def test_an_empty_corpus_is_an_error(kind: str, nothing: list[str]) -> None:
    with pytest.raises(UserError, match="holds no text"):
        train_tokenizer(nothing, TokenizerConfig(kind=kind))
    with pytest.raises(UserError, match="The target to train a tokenizer on holds no text"):
        train_pair(["我"], nothing, TokenizerConfig(kind=kind, shared=False))


def test_a_vocabulary_too_small_for_bytes_is_an_error(byte_kind: str) -> None:
    with pytest.raises(UserError, match=r"vocab_size is 259, .* at least 260"):
        train_tokenizer(["a"], TokenizerConfig(kind=byte_kind, vocab_size=259))


def test_wordpiece_works_with_the_smallest_vocabulary() -> None:
    tokenizer = train_tokenizer(["abcdefgh"], TokenizerConfig(kind="wordpiece", vocab_size=16))
    assert len(tokenizer) <= 16
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"


def test_nothing_is_printed(kind: str, lines: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    train_tokenizer(lines, TokenizerConfig(kind=kind, vocab_size=400))
    assert capfd.readouterr() == ("", "")
