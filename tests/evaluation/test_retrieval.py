"""How good embeddings are, of texts whose vectors are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qkv.evaluation import evaluate
from qkv.tasks import Encoder


class Known(Encoder):
    """Texts are numbers: the angles of their vectors, in degrees."""

    def __init__(self) -> None: ...

    def embed(self, texts, *more, **settings):  # type: ignore[no-untyped-def,override]
        angles = torch.tensor([float(text) for text in texts]).deg2rad()
        return torch.stack([angles.cos(), angles.sin()], dim=-1)


def test_a_twin_is_found_where_nothing_else_is_as_near() -> None:
    pairs = [("0", "10"), ("20", "25"), ("80", "90"), ("180", "91"), ("50", "150")]
    # "180" has "150" before its own, and "50" has all others before its own.
    accuracy, rank = evaluate(Known(), pairs).scores
    assert (accuracy.value, accuracy.signature) == (pytest.approx(60), "of 5 pairs")
    assert rank.value == pytest.approx((3 + 1 / 2 + 1 / 5) / 5)
    alike = [("7", "3"), ("007", "03"), ("7.0", "3.0")]
    assert evaluate(Known(), alike).scores[0].value == 0  # all texts are the same to it
    shared = [("0", "1"), ("0", "2"), ("-1", "1")]
    assert evaluate(Known(), shared).scores[0].value == 100  # all of these are right


def test_uniformity_is_its_formula() -> None:
    squares = [1.0, 4.0, 3.0]  # distances of 0, 60 and 180 degrees
    expected = math.log(np.mean([math.exp(-2 * square) for square in squares]))
    texts = [("0",), ("60",), ("180",), ("0",)]
    assert evaluate(Known(), texts).scores[0].value == pytest.approx(expected, rel=1e-5)
    assert evaluate(Known(), [("1",), ("1",)]).scores[0].value == 0
