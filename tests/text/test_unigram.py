"""Unigram's vocabulary keeps the pieces that explain the text best."""

import math

import pytest

from qkv.text.unigram import learn_unigram

WORDS = {"abab": 10, "abc": 5, "cab": 3, "c": 2}
SEEDS = ["a", "b", "c", "ab", "bc", "abab", "cab", "ca"]


def test_single_characters_always_stay() -> None:
    assert set(learn_unigram(WORDS, SEEDS, 3)) == {"a", "b", "c"}


def test_the_piece_that_would_be_missed_most_stays() -> None:
    assert set(learn_unigram(WORDS, SEEDS, 4)) == {"a", "b", "c", "abab"}
    rarer = {**WORDS, "abab": 1, "cab": 10}
    assert set(learn_unigram(rarer, SEEDS, 4)) == {"a", "b", "c", "cab"}


def test_scores_are_log_frequencies_in_the_best_segmentation() -> None:
    scores = learn_unigram(WORDS, SEEDS, 4)
    # abab, a·b·c, c·a·b, c: "abab" 10 times, "a" and "b" 5 + 3, "c" 5 + 3 + 2, 36 pieces in all
    counts = {"abab": 10, "c": 10, "a": 8, "b": 8}
    assert scores == pytest.approx({piece: math.log(n / 36) for piece, n in counts.items()})
    assert list(scores) == ["abab", "c", "a", "b"]  # the likeliest first, ties by name


def test_all_seeds_stay_where_there_is_room() -> None:
    assert set(learn_unigram(WORDS, SEEDS, 100)) == set(SEEDS)
