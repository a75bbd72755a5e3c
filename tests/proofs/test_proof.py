"""How differences are measured."""

from __future__ import annotations

import math

import pytest
import torch

from qkv.proofs.proof import difference, largest
from qkv.proofs.round_trip import _changed, _folded


def test_a_difference_is_in_units_of_the_root_mean_square() -> None:
    expected = [torch.tensor([3.0, -4.0]), torch.tensor([[0.0, 5.0]])]
    found = [torch.tensor([3.0, -4.0]), torch.tensor([[0.5, 5.0]])]
    assert difference(found, expected) == pytest.approx(0.5 / math.sqrt(50 / 4))
    assert difference(expected, expected) == 0
    larger = [[100 * x for x in each] for each in (found, expected)]
    assert difference(*larger) == pytest.approx(difference(found, expected))


def test_what_is_not_finite_or_not_alike_is_told() -> None:
    assert math.isnan(difference([torch.tensor([math.nan])], [torch.tensor([1.0])]))
    assert difference([torch.zeros(2)], [torch.zeros(2)]) == 0
    with pytest.raises(ValueError, match="is compared with"):
        difference([torch.zeros(2)], [torch.zeros(2, 1)])


def test_the_largest_of_differences_is_nan_wherever_one_is() -> None:
    assert largest([0.5, 2.0, 1.0]) == 2
    assert math.isnan(largest([0.5, math.nan])) and math.isnan(largest([math.nan, 0.5]))


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "ac", 1), ("我爱你", "你", 2)],
)
def test_characters_that_are_lost_are_counted(one: str, other: str, count: int) -> None:
    assert _changed(one, other) == _changed(other, one) == count


def test_spaces_case_and_accents_do_not_count() -> None:
    assert _folded("Élan ，  vital\n") == _folded("elan,vital")
    assert _folded("a b") != _folded("a c")
