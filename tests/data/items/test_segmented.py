"""Pairs that are segmented anew in every epoch: within the limits, and the same when resumed."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from qkv.config import TokenizerConfig
from qkv.data import (
    PairItems,
    SegmentedPairs,
    Specials,
    Stream,
    encode_pairs,
    encode_pairs_by_word,
    filter_pairs,
    segment_pairs,
)
from qkv.text import Tokenizer, train_tokenizer
from tests.demo.sentences import demo_pairs

PAIRS = demo_pairs(300)
LIMIT = 24


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [text for pair in PAIRS for text in pair]
    return train_tokenizer(texts, TokenizerConfig(vocab_size=700))


def special(tokenizer: Tokenizer) -> Specials:
    return Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)


def segmented(tokenizer: Tokenizer, dropout: float = 0.3, seed: int = 4) -> SegmentedPairs:
    sides = tokenizer, tokenizer
    items, words = encode_pairs_by_word(PAIRS, *sides, special(tokenizer))
    items, _ = filter_pairs(items, LIMIT, 9.0)
    return segment_pairs(items, words, sides, dropout, LIMIT, seed)


def texts_of(items: PairItems, tokenizer: Tokenizer) -> list[list[str]]:
    sides = (items.source.take(items.rows), items.target.take(items.rows))
    return [tokenizer.decode_many([ids.tolist() for ids in side]) for side in sides]


def test_plain_items_are_those_of_pairs_without_words(tokenizer: Tokenizer) -> None:
    by_word, (words, _) = encode_pairs_by_word(PAIRS, tokenizer, tokenizer, special(tokenizer), [9])
    plain = encode_pairs(PAIRS, tokenizer, tokenizer, special(tokenizer), [9])
    for ours, theirs in ((by_word.source, plain.source), (by_word.target, plain.target)):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.offsets.tolist() == theirs.offsets.tolist()
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
    too_long = segmented(tokenizer, dropout=0.9).target.draw(1, np.random.default_rng(0))
    assert too_long.tokens.tolist() == items.plain.target.take(items.plain.rows).tokens.tolist()


@pytest.mark.parametrize("packed", [False, True])
def test_epochs_are_a_function_of_the_seed_whatever_was_asked_for_before(
    tokenizer: Tokenizer, packed: bool
) -> None:
    def labels(start: int, count: int, seed: int = 4) -> list[list[int]]:
        stream = Stream(segmented(tokenizer, seed=seed), 400, packed=packed, seed=4)
        return [
            step[0].labels.flatten().tolist() for step in islice(stream.steps_from(start), count)
        ]

    n_batches = len(Stream(segmented(tokenizer), 400, packed=packed, seed=4).plan(0))
    whole = labels(0, 3 * n_batches)
    for start in (1, n_batches, 2 * n_batches + 1):
        assert labels(start, 3 * n_batches - start) == whole[start:]
    assert labels(0, 3, seed=5) != whole[:3]


def test_workers_share_the_batches_of_one(tokenizer: Tokenizer) -> None:
    def n_labels(**workers: int) -> list[int]:
        stream = Stream(segmented(tokenizer), 400, packed=True, seed=4, **workers)
        return [step[0].n_labels for step in islice(stream.steps_from(), 40)]

    shares = [n_labels(worker=worker, n_workers=3) for worker in range(3)]
    assert [sum(parts) for parts in zip(*shares, strict=True)] == n_labels()


def test_validation_is_plain(tokenizer: Tokenizer) -> None:
    items = segmented(tokenizer)
    chosen = np.arange(5)
    found, expected = items.batch(chosen), items.plain.batch(chosen)
    assert found.labels.tolist() == expected.labels.tolist()
    counts = items.label_counts()
    assert counts.sum() == items.plain.label_counts().sum()
