"""Answer spans: equal to trying out all of them, in one window and in several."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.decode.answer_spans import SpanScore, best_spans, null_score

Windows = tuple[list[Tensor], list[Tensor], list[Tensor]]


def drawn(lengths: list[int], seed: int, whole: bool) -> Windows:
    """Random logits, whole numbers with many ties or any; two tokens of three are allowed."""
    random = torch.Generator().manual_seed(seed)

    def logits(n: int) -> Tensor:
        any_numbers = torch.randn(n, generator=random)
        return (any_numbers * 1.5).round() if whole else any_numbers

    start, end = ([logits(n) for n in lengths] for _ in range(2))
    return start, end, [torch.rand(n, generator=random) < 0.67 for n in lengths]


def tried_out(windows: Windows, n_best: int, max_tokens: int) -> list[SpanScore]:
    found = [
        SpanScore(window, first, last, start[first].item() + end[last].item())
        for window, (start, end, allowed) in enumerate(zip(*windows, strict=True))
        for first in range(len(start))
        for last in range(first, min(first + max_tokens, len(start)))
        if allowed[first] and allowed[last]
    ]
    return sorted(found, key=lambda span: (-span.score, span.window, span.start))[:n_best]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.booleans(),
    st.integers(1, 30),
    st.integers(1, 12),
)
def test_the_best_of_all_spans(
    lengths: list[int], seed: int, whole: bool, n_best: int, max_tokens: int
) -> None:
    windows = drawn(lengths, seed, whole)
    assert best_spans(*windows, n_best, max_tokens) == tried_out(windows, n_best, max_tokens)


def test_an_example_by_hand() -> None:
    start = torch.tensor([9.0, 1.0, 3.0, 0.0])
    end = torch.tensor([9.0, 4.0, 1.0, 2.0])
    allowed = torch.tensor([False, True, True, True])
    assert best_spans([start], [end], [allowed], 3, 2) == [
        SpanScore(0, 1, 1, 5.0),
        SpanScore(0, 2, 3, 5.0),
        SpanScore(0, 2, 2, 4.0),
    ]
    assert best_spans([start], [end], [allowed], 9, 1)[1:] == [
        SpanScore(0, 2, 2, 4.0),
        SpanScore(0, 3, 3, 2.0),
    ]


def test_of_many_equal_spans_the_first_are_taken() -> None:
    flat = [torch.zeros(300)] * 2
    found = best_spans(flat, flat, [torch.ones(300, dtype=torch.bool)] * 2, 40, 30)
    assert [(span.window, span.start, span.end) for span in found] == [
        *((0, 0, end) for end in range(30)),
        *((0, 1, end) for end in range(1, 11)),
    ]


def test_tokens_between_the_ends_need_not_be_allowed() -> None:
    logits, allowed = [torch.zeros(3)], [torch.tensor([True, False, True])]
    places = [(span.start, span.end) for span in best_spans(logits, logits, allowed, 9, 9)]
    assert places == [(0, 0), (0, 2), (2, 2)]


def test_half_precision_is_summed_without_loss() -> None:
    start, end = (torch.tensor([256.0, 0.0]).bfloat16(), torch.tensor([1.0, 0.0]).bfloat16())
    [best] = best_spans([start], [end], [torch.ones(2, dtype=torch.bool)], 1, 2)
    assert best == SpanScore(0, 0, 0, 257.0)


def test_nothing_allowed_is_no_span() -> None:
    assert best_spans([torch.zeros(3)], [torch.zeros(3)], [torch.zeros(3).bool()], 5, 5) == []
    assert best_spans([], [], [], 5, 5) == []


def test_no_answer_scores_as_in_the_lowest_window() -> None:
    start = [torch.tensor([3.0, 9.0]), torch.tensor([1.0, -9.0])]
    end = [torch.tensor([1.0, 9.0]), torch.tensor([2.5, -9.0])]
    assert null_score(start, end) == 3.5
    assert null_score(start[:1], end[:1]) == 4.0


@pytest.mark.parametrize(("n_best", "max_tokens"), [(0, 1), (1, 0)])
def test_nothing_can_be_asked_of_no_spans(n_best: int, max_tokens: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        best_spans([torch.zeros(3)], [torch.zeros(3)], [torch.ones(3).bool()], n_best, max_tokens)
