import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from qkv.config import TokenizerConfig
from qkv.text import Tokenizer, train_tokenizer
from qkv.text.vocabulary import Vocabulary
from tests.text import foreign

Trained = Callable[[str], Tokenizer]
WORDS = st.text("acdeghinorstuöüß", min_size=1, max_size=9)
MARKS = st.sampled_from(["", "", ",", ";", "!", "?", "."])
TEXTS = st.lists(st.tuples(WORDS, MARKS), min_size=1, max_size=9).map(
    lambda parts: " ".join(word + mark for word, mark in parts)
)


def parts(tokenizer: Tokenizer, ids: list[int], cuts: np.ndarray) -> list[str]:
    """What the tokens between cuts spell, without white space."""
    groups = np.split(np.array(ids), np.flatnonzero(cuts))
    texts = [tokenizer.decode(group.tolist()).strip() for group in groups]
    return [text for text in texts if text]


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text)
    return parts(tokenizer, ids, Vocabulary.of(tokenizer).word_starts(np.array(ids)))


def sentences(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text)
    ends = Vocabulary.of(tokenizer).sentence_ends(np.array(ids))
    return parts(tokenizer, ids, np.append(False, ends[:-1]))


@given(TEXTS)
def test_words_are_the_same_however_a_tokenizer_spells_them(
    kind: str, trained: Trained, text: str
) -> None:
    assert words(trained(kind), text) == re.findall(r"\w+|[^\w\s]", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("In 2017 (1984)", ["In", "2017", "(", "1984", ")"]),
        ("Ŵxŷ дом\nΩμ a", ["Ŵxŷ", "дом", "Ωμ", "a"]),  # spelt in bytes
        ("我a爱。b", ["我", "a", "爱", "。", "b"]),
        ("עֲלֵיכֶם", ["עֲלֵיכֶם"]),
    ],
)
def test_digits_bytes_and_scripts_without_spaces(
    byte_kind: str, trained: Trained, text: str, expected: list[str]
) -> None:
    assert words(trained(byte_kind), text) == expected


def test_a_joiner_stands_within_a_word() -> None:
    tokenizer = train_tokenizer(["می\u200cخواهم"], TokenizerConfig(kind="char", vocab_size=300))
    assert len(tokenizer.encode("می\u200cخواهم")) == 8
    assert words(tokenizer, "می\u200cخواهم") == ["می\u200cخواهم"]


def test_pieces_by_themselves(kind: str, trained: Trained) -> None:
    tokenizer = trained(kind)
    facts = Vocabulary.of(tokenizer)
    pieces = dict(zip(tokenizer.tokens(range(len(tokenizer))), range(len(tokenizer)), strict=True))
    assert facts.special.tolist() == [True] * 4 + [False] * (len(tokenizer) - 4)
    assert facts.starts_word[:4].all() and not facts.ends_sentence[:4].any()
    assert not (facts.ends_in_letter[:4].any() or facts.glued[:4].any() or facts.within[:4].any())
    for piece in (",", "!", "我", "爱", "。", "▁"):
        if piece in pieces:
            assert facts.starts_word[pieces[piece]] and not facts.ends_in_letter[pieces[piece]]
    for piece in ("!", ".", "?", "⏎", "。", "？", "…"):
        assert piece not in pieces or facts.ends_sentence[pieces[piece]]
    for piece in ("a", ",", "我", "ß", "，"):
        assert piece not in pieces or not facts.ends_sentence[pieces[piece]]
    continues = "##a" if kind == "wordpiece" else "a"
    assert not facts.starts_word[pieces[continues]] and facts.ends_in_letter[pieces[continues]]
    if kind == "wordpiece":
        assert facts.starts_word[pieces["a"]]
    else:
        inner = [pieces[f"<0x{byte:02X}>"] for byte in range(0x80, 0xC0)]
        assert (
            np.flatnonzero(facts.within).tolist() == inner == np.flatnonzero(facts.glued).tolist()
        )
        assert not facts.starts_word[inner].any()
    if kind in ("bpe", "unigram"):
        assert facts.starts_word[pieces["▁the"]] and facts.ends_in_letter[pieces["▁the"]]


def test_a_word_starts_after_a_special_token_and_at_the_beginning(
    kind: str, trained: Trained
) -> None:
    tokenizer = trained(kind)
    facts = Vocabulary.of(tokenizer)
    going_on = [id for id in range(len(tokenizer)) if not facts.starts_word[id]]
    letter = next(id for id in going_on if facts.ends_in_letter[id])
    for id in going_on:
        new_word = not (facts.glued[letter] or facts.ends_in_letter[id])
        starts = facts.word_starts(np.array([id, 3, id, letter, id]))
        assert starts.tolist() == [True, True, True, new_word, False]
    assert facts.word_starts(np.zeros(0, np.int64)).tolist() == []
    assert facts.sentence_ends(np.zeros(0, np.int64)).tolist() == []


def test_sentences_end_where_a_person_would_say(kind: str, trained: Trained) -> None:
    text = 'The cat sat. Is it there? the dog is.  (the log is on it.) "The mat!" sat the cat'
    expected = [
        "The cat sat.",
        "Is it there?",
        "the dog is.",
        "(the log is on it.)",
        '"The mat!"',
        "sat the cat",
    ]
    if kind == "wordpiece":  # it cannot spell brackets and quotes that it never saw
        text, expected = text.split("(")[0], expected[:3]
    assert sentences(trained(kind), text) == expected
    if kind != "byte":  # bytes do not say that they are the last of a full stop
        chinese = "我爱你。你爱我吗？我不知道。"
        assert sentences(trained(kind), chinese) == ["我爱你。", "你爱我吗？", "我不知道。"]


def test_a_stop_within_a_word_or_number_ends_no_sentence(byte_kind: str, trained: Trained) -> None:
    text = "The U.S. is 3.5 sat.\nThe cat\nThe dog"
    expected = ["The U.S.", "is 3.5 sat.", "The cat", "The dog"]
    assert sentences(trained(byte_kind), text) == expected


def test_byte_level_and_word_piece_vocabularies_of_others(shared_data: Path) -> None:
    folder = shared_data / "tokenizers"
    bert, gpt2 = Tokenizer(foreign.bert(folder)), Tokenizer(foreign.gpt2(folder))
    facts = Vocabulary.of(bert)
    marked = [piece.startswith("##") for piece in bert.tokens(range(len(bert)))]
    assert (~facts.starts_word).tolist() == marked
    assert facts.special.sum() == 5
    text = "The unbelievable embeddings (42) 我."
    assert words(bert, text) == ["the", "unbelievable", "embeddings", "(", "42", ")", "我", "."]
    text = "Unbelievable Straße (42.5) 爱 Привет ŵŷ!"
    expected = ["Unbelievable", "Straße", "(", "42", ".", "5", ")", "爱", "Привет", "ŵŷ", "!"]
    assert words(gpt2, text) == expected
    text = 'He said "Go." Then 3.5 went.\n\nAll (of us.) left'
    expected = ['He said "Go."', "Then 3.5 went.", "All (of us.)", "left"]
    assert sentences(gpt2, text) == expected


def test_marks_of_spaces_and_of_ends() -> None:
    pieces = ["[UNK]", "▁sing", "ing", "▁.", "▁", "▁我", "."]
    backend = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["[UNK]"])
    facts = Vocabulary.of(Tokenizer(backend))
    assert facts.starts_word.tolist() == [True, True, False, True, True, True, True]
    assert facts.ends_sentence.tolist() == [False, False, False, True, False, False, True]
    vocabulary = {piece: id for id, piece in enumerate(["<unk>", "sing", "ing</w>", "er", ".</w>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    facts = Vocabulary.of(Tokenizer(backend))
    tokens = np.array([1, 2, 1, 3, 2, 2, 4])  # singing singering ing .
    assert facts.word_starts(tokens).tolist() == [True, False, True, False, False, True, True]
    assert facts.ends_sentence.tolist() == [False] * 4 + [True]


def test_an_id_without_a_piece_is_never_text() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 3, "c": 1, "d": 2}, []))
    assert Vocabulary.of(Tokenizer(backend)).special.tolist() == [False] * 4
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "c": 3}, []))
    assert Vocabulary.of(Tokenizer(backend)).special.tolist() == [False, False, True, False]
