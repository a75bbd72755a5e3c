"""No character is lost between text, ids and text again."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import TokenizerConfig
from qkv.data import read_lines
from qkv.text import Tokenizer, train_tokenizer

Trained = Callable[[str], Tokenizer]

# Code points that Python's Unicode tables do not know yet may have compositions in newer ones.
CHARACTERS = st.characters(exclude_categories=("Cs", "Cn"))
# Whole random Unicode rarely has two spaces or a hash in a row: mix in what is treated apart.
SNIPPETS = st.sampled_from(
    (
        *(" ", "  ", "\t", "\n", "\r\n", "#", "##", "###", "▁", "<eos>", "<0x41>", "<0xE4>", "<"),
        *("the", "cat", "Straße", "我爱你", "中国", "，", "。", "'", "...", "1984", "e\u0301", "İ"),
        *("👩\u200d👩\u200d👧", "🇩🇪", "❤️", "عَ", "שָׁ", "\u0301", "\u200d", "\u3000", "ー"),
        *("กำ", "\ufffd"),
    )
)
TEXTS = st.one_of(st.text(CHARACTERS), st.lists(st.one_of(SNIPPETS, CHARACTERS)).map("".join))

SAMPLES = [
    *("我爱你", "Straße, größer; ÄÖÜ ẞ", "👩‍👩‍👧‍👦 and 🇩🇪🇨🇳 and ❤️", "a  b   c", "\ta\tb\n\nc "),
    *("السَّلَامُ عَلَيْكُمْ — שָׁלוֹם עֲלֵיכֶם", " leading", "   ", " 我", "a , b", "a, b", ""),
    *("▁literal ▁ marks", "“quoted” 'single' don't"),
]


@given(text=TEXTS)
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back_in_its_normal_form(
    text: str, byte_kind: str, trained: Trained
) -> None:
    tokenizer = trained(byte_kind)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
    assert not {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id} & set(ids)


@given(text=st.text(st.sampled_from("The cat sat on mat. 我爱你，#…ßäü  12'")))
@settings(max_examples=150, deadline=None)
def test_wordpiece_keeps_text_whose_characters_it_knows(text: str, trained: Trained) -> None:
    tokenizer = trained("wordpiece")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_samples_come_back(byte_kind: str, trained: Trained) -> None:
    tokenizer = trained(byte_kind)
    for sample in SAMPLES:
        assert tokenizer.decode(tokenizer.encode(sample)) == sample


def test_wordpiece_marks_only_the_word_with_an_unseen_character(trained: Trained) -> None:
    tokenizer = trained("wordpiece")
    ids = tokenizer.encode("the ŵ cat 爱猫中")
    assert ids.count(tokenizer.unk_id) == 2
    assert tokenizer.decode(ids) == "the cat 爱中"


def test_wordpiece_keeps_very_long_words(trained: Trained) -> None:
    tokenizer = trained("wordpiece")
    text = "ring" * 200 + " " * 300 + "the"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_wordpiece_tells_hashes_in_text_from_its_own() -> None:
    text = "##a b##c ### #"
    tokenizer = train_tokenizer([text] * 9, TokenizerConfig(kind="wordpiece"))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("special", ["<pad>", "<unk>", "<bos>", "<eos>"])
def test_text_cannot_spell_a_special_token(special: str, kind: str, lines: list[str]) -> None:
    text = f"the {special}{special} cat"
    # wordpiece has no bytes: let it see the characters, though never as one piece
    tokenizer = train_tokenizer([*lines, *[text] * 9], TokenizerConfig(kind=kind, vocab_size=500))
    for ids in (tokenizer.encode(text), tokenizer.encode_many([text])[0]):
        assert not {0, 1, 2, 3} & set(ids)
        assert tokenizer.decode([tokenizer.bos_id, *ids, tokenizer.eos_id]) == text


def test_many_at_once_are_the_same_as_one_by_one(kind: str, trained: Trained) -> None:
    tokenizer = trained(kind)
    many = tokenizer.encode_many(SAMPLES)
    assert many == [tokenizer.encode(sample) for sample in SAMPLES]
    assert tokenizer.decode_many(many) == [tokenizer.decode(ids) for ids in many]


@pytest.mark.parametrize(
    ("settings", "text", "expected"),
    [
        ({}, "e\u0301 ﬁ Ä", "é ﬁ Ä"),
        ({"normalize": "nfkc"}, "e\u0301 ﬁ ２ Ä", "é fi 2 Ä"),
        ({"normalize": "none"}, "e\u0301 ﬁ", "e\u0301 ﬁ"),
        ({"lowercase": True}, "Die STRASSE Über", "die strasse über"),
    ],
)
def test_normalisation_is_as_configured(
    settings: dict[str, object], text: str, expected: str, byte_kind: str, lines: list[str]
) -> None:
    config = TokenizerConfig(kind=byte_kind, vocab_size=400, **settings)
    tokenizer = train_tokenizer(lines, config)
    assert tokenizer.decode(tokenizer.encode(text)) == expected


@pytest.mark.parametrize(
    "name",
    ["tatoeba_en_zh/valid.zh", "tatoeba_en_de/valid.de", "multi30k/valid.cs", "multi30k/valid.fr"],
)
@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_every_line_of_real_text_comes_back(shared_data: Path, name: str, kind: str) -> None:
    lines = read_lines(shared_data / name)
    half = len(lines) // 2  # the other half has words and characters that were never seen
    config = TokenizerConfig(kind=kind, vocab_size=1000, normalize="none")  # type: ignore[arg-type]
    tokenizer = train_tokenizer(lines[:half], config)
    ids = tokenizer.encode_many(lines)
    assert [tokenizer.decode(sentence) for sentence in ids] == lines
    assert not any(tokenizer.unk_id in sentence for sentence in ids)
