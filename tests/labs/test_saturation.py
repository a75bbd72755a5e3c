"""Closed forms agree with autograd, and with what can be worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv_labs import saturation as lab
from qkv_labs.lab import Settings


@pytest.fixture(scope="module")
def measured() -> lab.Measured:
    return lab.measure(Settings())


@given(st.floats(-10, 15))
def test_the_closed_norm_is_the_spectral_norm_of_diag_p_minus_ppt(gap: float) -> None:
    logits = lab.logits_of(gap)
    p = logits.exp() / logits.exp().sum()
    matrix = torch.diag(p) - torch.outer(p, p)
    largest = torch.linalg.eigvalsh(matrix)[-1].item()
    assert lab.jacobian_norm(logits) == pytest.approx(largest, rel=1e-6)
    assert lab.closed_norm(gap) == pytest.approx(largest, rel=1e-6)


def test_gradients_are_p_minus_y_and_j_times_it() -> None:
    logits = torch.randn(lab.N_CLASSES, dtype=torch.float64)
    p = logits.softmax(-1)
    wrong = p.clone()
    wrong[3] -= 1
    assert torch.allclose(lab.slope("entropy", logits, 3), wrong)
    matrix = torch.diag(p) - torch.outer(p, p)
    assert torch.allclose(lab.slope("square", logits, 3), matrix @ wrong)


def test_far_out_the_norms_are_their_limits(measured: lab.Measured) -> None:
    last = measured.gaps[-1]
    assert last.autograd == pytest.approx(lab.N_CLASSES * math.exp(-last.gap), rel=1e-6)
    assert last.shifted == pytest.approx(last.autograd, rel=1e-6)
    assert last.tied == pytest.approx(0.5, rel=1e-6)
    assert last.entropy_wrong == pytest.approx(math.sqrt(2), rel=1e-6)
    n = lab.N_CLASSES
    assert last.entropy_right == pytest.approx(math.exp(-last.gap) * math.sqrt(n * (n - 1)))
    assert measured.rate == pytest.approx(-1, abs=0.01)
    assert measured.square_rate == pytest.approx(-1, abs=0.01)


def test_a_gradient_is_nothing_once_p_rounds_to_one(measured: lab.Measured) -> None:
    for name, gap in measured.zero_from.items():
        dtype = lab.PRECISIONS[name]
        at, before = (torch.softmax(lab.logits_of(g, dtype=dtype), 0)[0] for g in (gap, gap - 0.5))
        assert at.item() == 1 and before.item() < 1


def test_one_step_is_counted_as_one() -> None:
    assert lab.climb("entropy", 0.5) == 1  # the label gains 1 - p > 0.7, the other loses p
    assert lab.climb("square", 6) > 10 * lab.climb("entropy", 6)
