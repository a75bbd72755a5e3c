"""The tests that every text encoder passes, made for the pairs of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.model import equation, fast, use_path
from tests.parity.encoders import (
    TOLERANCES,
    Pair,
    answers,
    assert_same_answers,
    assert_same_gradients,
)

PATHS = pytest.mark.parametrize("path", [fast, equation])
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES)
MakePair = Callable[..., Pair]  # a head, a seed and sizes to both models


def heads_are_equal(
    make: MakePair, heads: Sequence[str], *batches: Sequence[int]
) -> Callable[..., None]:
    """Each head, on both paths and in both precisions, on texts of these lengths."""

    @DTYPES
    @PATHS
    @pytest.mark.parametrize("head", heads)
    def test(head, path, dtype):
        pair = make(head, seed=3)
        for lengths in batches:
            assert_same_answers(pair, dtype, path, TOLERANCES[dtype], list(lengths))

    return test


def sizes_are_equal(
    make: MakePair, head: str, all_sizes: Sequence[dict], lengths: Sequence[int]
) -> Callable[..., None]:
    """Models of other sizes."""

    @DTYPES
    @pytest.mark.parametrize("sizes", all_sizes, ids=str)
    def test(sizes, dtype):
        pair = make(head, seed=4, **sizes)
        assert_same_answers(pair, dtype, fast, TOLERANCES[dtype], list(lengths))

    return test


def any_lengths_are_equal(
    make: MakePair, heads: Sequence[str], longest: int
) -> Callable[..., None]:
    """Texts of whatever lengths, padded."""
    made = cache(make)

    @pytest.mark.parametrize("head", heads)
    @settings(max_examples=15)
    @given(
        lengths=st.lists(st.integers(1, longest), min_size=1, max_size=4),
        seed=st.integers(0, 1000),
        path=st.sampled_from([fast, equation]),
    )
    def test(head, lengths, seed, path):
        assert_same_answers(made(head), torch.float64, path, 1e-10, lengths, seed)

    return test


def gradients_are_equal(
    make: MakePair, heads: Sequence[str], lengths: Sequence[int]
) -> Callable[..., None]:
    """The gradients of all weights, on both paths."""

    @PATHS
    @pytest.mark.parametrize("head", heads)
    def test(head, path):
        theirs, ours = (model.double() for model in make(head, seed=1))
        with use_path(ours, path):
            said = answers((theirs, ours), list(lengths))
        assert_same_gradients((theirs, ours), head, said, 1e-10)

    return test
