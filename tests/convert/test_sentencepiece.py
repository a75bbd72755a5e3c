"""SentencePiece files: the same ids as the library itself gives, for each kind of model."""

import random
import unicodedata
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.convert.tokenizers.sentencepiece import (
    UNIGRAM,
    UNKNOWN,
    Piece,
    SentencePiece,
    build_backend,
    read_sentencepiece,
    renumbered,
)
from qkv.errors import UserError
from qkv.text import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

WORDS = [
    *("the", "cat", "sat", "on", "mat", "Straße", "größer", "über", "我爱你", "中国", "猫在垫子上"),
    *("привет", "мир", "2017,", "100", "don't", "<b>", "e\u0301", "ｆｕｌｌ", "ﬁn", "café", "—"),
    *("“quoted”", "😀", "1/2"),
]
SPELT = ["<s>", "</s>", "<unk>", "<pad>", "<0x0A>", "[x]", "<mask>"]
SPACES = [" ", "  ", "\t", "\n", "\u3000", "\xa0", "▁"]
# No further marks: the `tokenizers` library drops them after a few letters that NFKC replaces.
CHARACTERS = st.characters(exclude_categories=["Cs", "Mn", "Mc", "Me"])
TEXTS = st.lists(st.sampled_from(WORDS + SPACES + ["CAFÉ", "👩‍👧"]) | CHARACTERS).map("".join)
SPELLING = st.lists(st.sampled_from(WORDS + SPACES + SPELT)).map("".join)


def lines() -> list[str]:
    """Sentences of the words above, alone and grown together."""
    draw = random.Random(0)
    return [
        # no word twice in a row: "catcat" + "cat" would score as "cat" + "catcat"
        " ".join("".join(draw.sample(WORDS, draw.choice([1, 1, 2]))) for _ in range(8))
        for _ in range(300)
    ]


def train(path: Path, text: list[str] | None = None, **options: Any) -> Path:
    """Train a tiny SentencePiece model with the library."""
    prefix = path.with_suffix("")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text or lines()),
        model_prefix=str(prefix),
        hard_vocab_limit=False,
        minloglevel=9,
        **options,
    )
    prefix.with_suffix(".vocab").unlink()
    return prefix.with_suffix(".model").rename(path)


SYMBOLS = ["<mask>", "[x]", "at", "爱"]  # two of which occur within words
AS_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
LLAMA = {"model_type": "bpe", "vocab_size": 450, "byte_fallback": True, "split_digits": True}
KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"vocab_size": 150},
    "t5": {"vocab_size": 150, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "bytes": {"vocab_size": 400, "byte_fallback": True, "user_defined_symbols": SYMBOLS},
    "no prefix": {"vocab_size": 150, "add_dummy_prefix": False, **AS_IS},
    "bpe": {"model_type": "bpe", "vocab_size": 200},
    "llama": {**LLAMA, **AS_IS},
    "char": {"model_type": "char", "vocab_size": 60},
}


@cache
def trained(kind: str) -> tuple[Any, Tokenizer]:
    """The library's model and ours, from one file."""
    with TemporaryDirectory() as folder:
        path = train(Path(folder, "it.model"), **KINDS[kind])
        library = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return library, Tokenizer(build_backend(read_sentencepiece(path)))


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
@settings(max_examples=150, deadline=None)
def test_ids_and_texts_are_the_librarys(kind: str, text: str) -> None:
    library, ours = trained(kind)
    ids = ours.encode(text)
    assert ids == library.encode(text)
    if library.unk_id() not in ids:  # the library writes " ⁇ " for it
        assert ours.decode(ids) == library.decode(ids)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "char"]
)  # it does not know all of these characters
@given(text=SPELLING)
@settings(max_examples=100, deadline=None)
def test_no_text_spells_a_special_token(kind: str, text: str) -> None:
    library, ours = trained(kind)
    ids = ours.encode(text)
    assert ids == library.encode(text)
    assert not {library.bos_id(), library.eos_id(), library.pad_id()} & set(ids)


@pytest.mark.parametrize("kind", ["bpe", "llama"])
def test_the_leftmost_of_equal_merges_comes_first(kind: str, tmp_path: Path) -> None:
    sizes = [1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8]
    options = {**KINDS[kind], "vocab_size": 266 if kind == "llama" else 9}
    path = train(tmp_path / "a.model", [" ".join("a" * size for size in sizes)] * 9, **options)
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ours = Tokenizer(build_backend(read_sentencepiece(path)))
    assert "▁aaaa" in ours.tokens(range(len(ours)))
    for length in range(40):
        assert ours.encode("a" * length) == library.encode("a" * length)


def test_a_text_that_spells_unknown_characters_of_a_special_token_is_still_text() -> None:
    library, ours = trained("t5")
    assert library.eos_id() not in ours.encode("</s>") + ours.encode("a</s>") + ours.encode("</s")
    assert library.id_to_piece(ours.encode("cat</s>")) == ["▁cat", "<", "/", "s", ">"]


def test_the_file_says_what_the_model_is(tmp_path: Path) -> None:
    t5 = read_sentencepiece(train(tmp_path / "t5.model", **KINDS["t5"]))
    assert t5.names == {"padding": "<pad>", "end": "</s>", "unknown": "<unk>"}
    assert (t5.normalizer, t5.add_dummy_prefix, t5.byte_fallback) == ("nmt_nfkc", True, False)
    llama = read_sentencepiece(train(tmp_path / "l.model", **KINDS["llama"]))
    assert llama.ids == {"unknown": 0, "start": 1, "end": 2}
    assert (llama.charsmap, llama.byte_fallback, llama.remove_extra_whitespaces) == (b"", True, 0)


@pytest.mark.parametrize("rules", ["nmt_nfkc", "nfkc_cf"])
def test_letters_apart_from_their_marks_are_put_together(rules: str, tmp_path: Path) -> None:
    """Of several marks, and of the parts of a Korean syllable, all are."""
    spoken = ["tiếng Việt ở nước", "한국어 문장", "Ångström café", "क़लम", "שָׁלוֹם"]
    path = train(tmp_path / "it.model", spoken * 20, vocab_size=90, normalization_rule_name=rules)
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ours = Tokenizer(build_backend(read_sentencepiece(path)))
    for text in spoken:
        for form in ("NFC", "NFD", "NFKD"):
            written = unicodedata.normalize(form, text)
            assert ours.encode(written) == library.encode(written)
            assert library.unk_id() not in ours.encode(written)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_every_digit_of_a_score(kind: str, tmp_path: Path) -> None:
    _, ours = trained(kind)
    ours.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json")._backend.to_str() == ours._backend.to_str()


def test_special_tokens_are_skipped_in_decoding() -> None:
    _, ours = trained("llama")
    assert ours.special_ids == [0, 1, 2]
    assert ours.decode([1, *ours.encode("the cat"), 2]) == "the cat"
    assert ours.decode(ours.encode("  two\n龘")) == "  two\n龘"


def test_tokens_have_places_in_the_text() -> None:
    for kind in ("unigram", "llama"):
        _, ours = trained(kind)
        text = "the cat, 我爱你"
        spelt = ours.encode_spans(text)
        assert spelt.ids == ours.encode(text)
        assert "".join(text[start:end] for start, end in spelt.spans) == text.replace(" ", "")


def test_pieces_of_another_vocabulary_come_last() -> None:
    scores = {"▁ab": -9.0, "▁": -2.0, "a": -3.0}
    own = (Piece("<unk>", 0.0, UNKNOWN), *(Piece(text, score) for text, score in scores.items()))
    model = SentencePiece(own, UNIGRAM, False, {"unknown": 0}, "", b"", True, True, True)
    names = ["b", "▁ab", "aa", "<unk>", "a", "▁"]
    ours = Tokenizer(build_backend(renumbered(model, names, {"unknown": "<unk>"})))
    assert ours.encode("ab") == [1]  # though "b" alone is there
    assert ours.encode("aab") == [5, 4, 4, 0]  # "aa" is hidden, and "b" would be unknown
    assert ours.encode("c") == [5, 3]
    assert ours.decode([1, 2, 0]) == "abaab"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = train(tmp_path / "it.model", **KINDS["unigram"])
    content = path.read_bytes()
    for damaged in (b"", b"not a model", content[:1000], b"\xff" * 40):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"it\.model is not a whole SentencePiece model"):
            read_sentencepiece(path)
    with pytest.raises(UserError, match=r"gone.model cannot be read: No such file"):
        read_sentencepiece(tmp_path / "gone.model")


def test_models_of_whole_words_are_refused(tmp_path: Path) -> None:
    path = train(tmp_path / "it.model", model_type="word", vocab_size=50)
    with pytest.raises(UserError, match=r"it\.model cuts text into whole words"):
        read_sentencepiece(path)
