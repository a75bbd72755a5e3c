"""BPE dropout against the `tokenizers` library, which draws from a generator of its own."""

from collections import Counter

import numpy as np
import pytest
import tokenizers

from qkv.config import TokenizerConfig
from qkv.data import Ragged
from qkv.data.bpe_dropout import Merges
from qkv.errors import UserError
from qkv.text import Tokenizer, train_tokenizer
from tests.demo.sentences import demo_pairs

TEXTS = [text for pair in demo_pairs(800) for text in pair]
TEXTS += ["Zürich ☃ costs 1,250.00 — really?", "我爱你，yes 你"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerConfig(vocab_size=700))


def words_of(tokenizer: Tokenizer, texts: list[str]) -> Ragged:
    return Ragged.of([word for words in tokenizer.encode_by_word(texts) for word in words])


def test_words_end_to_end_are_the_text(tokenizer: Tokenizer) -> None:
    for words, ids in zip(
        tokenizer.encode_by_word(TEXTS), tokenizer.encode_many(TEXTS), strict=True
    ):
        assert [id for word in words for id in word] == ids


def test_without_dropout_it_is_the_plain_segmentation(tokenizer: Tokenizer) -> None:
    words = words_of(tokenizer, TEXTS)
    found = Merges.of(tokenizer).segment(words, 0.0, np.random.default_rng(0))
    assert found.offsets.tolist() == words.offsets.tolist()
    assert found.tokens.tolist() == words.tokens.tolist()


def test_without_any_merge_characters_are_left(tokenizer: Tokenizer) -> None:
    merges = Merges.of(tokenizer)
    made = {result for _, _, result in tokenizer.merges}
    words = words_of(tokenizer, TEXTS)
    found = merges.segment(words, 1.0, np.random.default_rng(0))
    assert not made & set(found.tokens.tolist())
    assert len(found) == len(words)


def test_each_segmentation_spells_its_word(tokenizer: Tokenizer) -> None:
    words = words_of(tokenizer, TEXTS)
    found = Merges.of(tokenizer).segment(words, 0.3, np.random.default_rng(1))
    plain = tokenizer.decode_many([word.tolist() for word in words])
    assert tokenizer.decode_many([word.tolist() for word in found]) == plain
    assert len(found.tokens) > len(words.tokens)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_segmentations_are_as_frequent_as_those_of_the_library(
    tokenizer: Tokenizer, dropout: float
) -> None:
    content = json_with_dropout(tokenizer, dropout)
    library = tokenizers.Tokenizer.from_str(content)
    n = 4000
    word = max(words_of(tokenizer, TEXTS[:400]), key=lambda ids: len(tokenizer.decode(ids)))
    text = tokenizer.decode(word.tolist())
    assert tokenizer.encode(text) == word.tolist()
    theirs = Counter(
        tuple(encoding.ids) for encoding in library.encode_batch([text] * n, False, False)
    )
    many = Ragged.of([word.tolist()] * n)
    drawn = Merges.of(tokenizer).segment(many, dropout, np.random.default_rng(2))
    ours = Counter(tuple(ids.tolist()) for ids in drawn)
    likely = [ids for ids, count in (ours + theirs).most_common(8) if count > 200]
    assert len(likely) > 1
    for ids in likely:  # five standard deviations of the difference of two draws
        share = (ours[ids] + theirs[ids]) / (2 * n)
        assert abs(ours[ids] - theirs[ids]) / n < 5 * np.sqrt(2 * share * (1 - share) / n)


def json_with_dropout(tokenizer: Tokenizer, dropout: float) -> str:
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    backend.model.dropout = dropout
    return str(backend.to_str())


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "char", "byte"])
def test_a_tokenizer_without_merges_is_refused(kind: str) -> None:
    size = 300 if kind == "byte" else 700
    other = train_tokenizer(TEXTS[:100], TokenizerConfig(kind=kind, vocab_size=size))
    with pytest.raises(UserError, match=r"bpe_dropout skips merges, but the tokenizer has none"):
        Merges.of(other)
