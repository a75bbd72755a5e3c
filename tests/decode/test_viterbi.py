"""The best valid labels: equal to trying out all sequences, one by one and in batches."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.decode.viterbi import best_path, best_paths
from qkv.text.tagging import OUTSIDE, Scheme, label_set, may_follow, transitions

Rules = tuple[Tensor, Tensor, Tensor]


@st.composite
def rules(draw: st.DrawFn, n_labels: int) -> Rules:
    """Mostly allowed, so that most sequences have an answer."""
    flags = st.sampled_from([True, True, False])
    drawn = draw(st.lists(flags, min_size=n_labels * (n_labels + 2), max_size=n_labels * 99))
    table = torch.tensor(drawn[: n_labels * (n_labels + 2)]).view(n_labels + 2, n_labels)
    return table[0], table[2:], table[1]


@st.composite
def problems(draw: st.DrawFn, least: int = 1) -> tuple[Tensor, Rules]:
    """Scores of a few whole numbers: sums are exact, and many are equal."""
    n_tokens, n_labels = draw(st.integers(least, 5)), draw(st.integers(1, 3))
    size = n_tokens * n_labels
    numbers = draw(st.lists(st.integers(-2, 2), min_size=size, max_size=size))
    scores = torch.tensor(numbers, dtype=torch.float32).view(n_tokens, n_labels)
    return scores, draw(rules(n_labels))


def is_valid(path: tuple[int, ...], rules: Rules) -> bool:
    begin, follow, end = rules
    inside = all(follow[pair] for pair in pairwise(path))
    return bool(begin[path[0]] and end[path[-1]] and inside)


def total(scores: Tensor, path: tuple[int, ...]) -> float:
    return sum(float(scores[place, label]) for place, label in enumerate(path))


def tried_out(scores: Tensor, rules: Rules) -> list[int] | None:
    """The best of all valid sequences; of equal ones the lowest, compared from the end."""
    every = product(range(scores.shape[1]), repeat=len(scores))
    valid = [path for path in every if is_valid(path, rules)]
    best = min(valid, key=lambda path: (-total(scores, path), path[::-1]), default=None)
    return None if best is None else list(best)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(problems())
def test_the_best_of_all_valid_sequences(dtype: torch.dtype, problem: tuple[Tensor, Rules]) -> None:
    scores, rules = problem
    expected = tried_out(scores, rules)
    if expected is None:
        with pytest.raises(ValueError, match=f"no valid labels of length {len(scores)}"):
            best_path(scores.to(dtype), *rules)
    else:
        assert best_path(scores.to(dtype), *rules) == expected


@given(st.integers(0, 10**6), rules(3))
def test_the_best_sum_of_any_scores(seed: int, rules: Rules) -> None:
    scores = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = tried_out(scores, rules)
    if expected is not None:
        assert best_path(scores, *rules) == expected


@given(st.data(), st.integers(1, 3))
def test_a_batch_is_its_sequences_one_by_one(data: st.DataObject, n_labels: int) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    allowed = data.draw(rules(n_labels))
    scores = torch.randint(-2, 3, (len(lengths), 6, n_labels)).float()
    for row, length in enumerate(lengths):
        scores[row, length:] = data.draw(st.sampled_from([torch.nan, torch.inf, 100.0]))
    try:
        expected = [best_path(row[:n], *allowed) for row, n in zip(scores, lengths, strict=True)]
    except ValueError:
        with pytest.raises(ValueError, match="no valid labels"):
            best_paths(scores, torch.tensor(lengths), *allowed)
    else:
        assert best_paths(scores, torch.tensor(lengths), *allowed) == expected


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=12, max_size=12), rules(3))
def test_the_best_labels_of_all_stand_where_they_are_valid(
    numbers: list[float], rules: Rules
) -> None:
    """Even where sums of such numbers could not tell them from others."""
    scores = torch.tensor(numbers).view(4, 3)
    free = scores.argmax(dim=-1).tolist()
    if is_valid(tuple(free), rules):
        assert best_path(scores, *rules) == free
    everything = [torch.ones_like(each) for each in rules]
    assert best_path(scores, *everything) == free


def test_a_small_gain_counts_beside_large_numbers() -> None:
    scores = torch.tensor([[1e8, 0.0], [0.0, 1e-3]])
    follow = torch.ones(2, 2, dtype=torch.bool)
    assert best_path(scores, follow[0], follow, follow[0]) == [0, 1]


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "bioes"])
def test_labels_of_a_scheme_spell_entities(scheme: Scheme) -> None:
    labels = label_set([["I-x", "I-y", "I-z"]], scheme)
    allowed = transitions(labels, scheme)
    lengths = torch.randint(0, 40, (64,))
    scores = torch.randn(64, 40, len(labels))
    paths = best_paths(scores, lengths, allowed.begin, allowed.follow, allowed.end)
    assert [len(path) for path in paths] == lengths.tolist()
    named = [[labels[label] for label in path] for path in paths]
    pairs = {pair for path in named for pair in pairwise([OUTSIDE, *path, OUTSIDE])}
    assert all(may_follow(*pair, scheme) for pair in pairs)
    assert {label for pair in pairs for label in pair} == {*labels}


def test_nothing_has_no_labels() -> None:
    allowed = np.zeros(2, np.bool_), np.zeros((2, 2), np.bool_), np.zeros(2, np.bool_)
    assert best_path(torch.zeros(0, 2), *allowed) == []
    assert best_paths(torch.zeros(3, 0, 2), torch.zeros(3, dtype=torch.long), *allowed) == [[]] * 3
    assert best_paths(torch.zeros(1, 4, 2), torch.tensor([0]), *allowed) == [[]]


def test_a_row_without_an_answer_is_named() -> None:
    end = torch.tensor([False, True])
    follow = torch.tensor([[True, True], [False, False]])  # 1 is a dead end
    begin = torch.tensor([True, False])
    scores, lengths = torch.zeros(3, 2, 2), torch.tensor([2, 2, 1])
    with pytest.raises(ValueError, match="row 2 has no valid labels of length 1"):
        best_paths(scores, lengths, begin, follow, end)
    assert best_paths(scores[:2], lengths[:2], begin, follow, end) == [[0, 1], [0, 1]]
    with pytest.raises(ValueError, match="finite"):
        best_path(torch.full((2, 2), torch.nan), begin, follow, end)
