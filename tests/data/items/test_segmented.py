"""Pairs that are segmented anew in every epoch: within the limits, and the same when resumed."""

from functools import cache

import numpy as np
import pytest

from qkv.config import TokenizerConfig
from qkv.data import PairItems, SegmentedPairs, Specials, encode_pairs, filter_pairs
from qkv.text import Tokenizer, train_tokenizer
from tests.demo.sentences import demo_pairs

PAIRS = demo_pairs(300)
LIMIT = 24


@cache
def trained() -> Tokenizer:
    texts = [text for pair in PAIRS for text in pair]
    return train_tokenizer(texts, TokenizerConfig(vocab_size=700))


@pytest.fixture
def tokenizer() -> Tokenizer:
    return trained()


def special(tokenizer: Tokenizer) -> Specials:
    return Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)


def segmented(tokenizer: Tokenizer, dropout: float = 0.3, seed: int = 4) -> SegmentedPairs:
    sides = tokenizer, tokenizer
    items = encode_pairs(PAIRS, *sides, special(tokenizer), by_word=True)
    items, _ = filter_pairs(items, LIMIT, 9.0)
    return SegmentedPairs(items, sides, dropout, LIMIT, seed)


def texts_of(items: PairItems, tokenizer: Tokenizer) -> list[list[str]]:
    sides = (items.source.take(items.rows), items.target.take(items.rows))
    return [tokenizer.decode_many([ids.tolist() for ids in side]) for side in sides]


def test_plain_items_are_those_of_pairs_without_words(tokenizer: Tokenizer) -> None:
    given = PAIRS, tokenizer, tokenizer, special(tokenizer), [9]
    by_word, plain = (encode_pairs(*given, by_word=by_word) for by_word in (True, False))
    for ours, theirs in ((by_word.source, plain.source), (by_word.target, plain.target)):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.offsets.tolist() == theirs.offsets.tolist()
    assert by_word.words is not None
    words, _ = by_word.words
    assert words.tokens.sum() == len(by_word.source.tokens)
    assert words[0][0] == 1  # what comes before a text is a word by itself


def test_each_epoch_spells_the_same_texts_in_other_pieces(tokenizer: Tokenizer) -> None:
    items = segmented(tokenizer)
    expected = texts_of(items.plain, tokenizer)
    epochs = [items.in_epoch(epoch) for epoch in range(3)]
    assert all(texts_of(epoch, tokenizer) == expected for epoch in epochs)
    assert len({epoch.source.tokens.tobytes() for epoch in epochs}) == 3
    sizes = [epoch.target_sizes.sum() for epoch in epochs]
    assert min(sizes) > items.plain.target_sizes.sum()


def test_without_dropout_every_epoch_is_plain(tokenizer: Tokenizer) -> None:
    items = segmented(tokenizer, dropout=0.0)
    plain = items.plain.source.take(items.plain.rows)
    for epoch in range(2):
        assert items.in_epoch(epoch).source.tokens.tolist() == plain.tokens.tolist()


def test_no_text_gets_over_the_limit(tokenizer: Tokenizer) -> None:
    items = segmented(tokenizer, dropout=0.9)
    assert items.longest == LIMIT
    widest = [items.in_epoch(epoch).target_sizes.max() for epoch in range(5)]
    assert max(widest) <= LIMIT
    too_long = segmented(tokenizer, dropout=0.9).sides[1].draw(1, np.random.default_rng(0))
    assert too_long.tokens.tolist() == items.plain.target.take(items.plain.rows).tokens.tolist()


def test_validation_is_plain(tokenizer: Tokenizer) -> None:
    items = segmented(tokenizer)
    chosen = np.arange(5)
    found, expected = items.batch(chosen), items.plain.batch(chosen)
    assert found.labels.tolist() == expected.labels.tolist()
    counts = items.label_counts()
    assert counts.sum() == items.plain.label_counts().sum()
