"""Counts are those of the formulas, crossings are where formulas meet, bytes are what is kept."""

import pytest
import torch

from qkv_labs import cost as lab
from qkv_labs.cost import CORE, FEED_FORWARD, FUSED, PARTS, PROJECTIONS, RECURRENT

FORMULAS = {
    CORE: lambda n, d: 4 * n * n * d,
    PROJECTIONS: lambda n, d: 8 * n * d * d,
    FEED_FORWARD: lambda n, d: 16 * n * d * d,
    RECURRENT: lambda n, d: 4 * n * d * d,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("n", "d"), [(1, 8), (7, 16), (40, 12)])
def test_counted_flops_are_the_formula(part: str, n: int, d: int) -> None:
    assert lab.flops(part, n, d) == FORMULAS[part](n, d)


def test_crossings_are_where_the_formulas_meet() -> None:
    assert lab.crossing(32, (RECURRENT,)) == 1
    assert lab.crossing(32, (PROJECTIONS,)) == 2
    assert lab.crossing(32, (FEED_FORWARD,)) == 4
    assert lab.crossing(32, (PROJECTIONS, FEED_FORWARD)) == 6


def test_the_kept_bytes_of_attention_are_its_scores_and_weights_and_little_else() -> None:
    n, d = 64, 16
    square = 4 * lab.N_HEADS * n * n
    assert lab.kept_bytes(CORE, 2 * n, d) - lab.kept_bytes(CORE, n, d) > 3 * square
    assert lab.kept_bytes(FUSED, 2 * n, d) == 2 * lab.kept_bytes(FUSED, n, d)
    assert lab.kept_bytes(FEED_FORWARD, 2 * n, d) == 2 * lab.kept_bytes(FEED_FORWARD, n, d)


def test_the_fused_kernel_does_the_same_work() -> None:
    (one, _), (other, _) = (lab.prepare(part, 9, 16) for part in (CORE, FUSED))
    assert torch.allclose(one(), other(), atol=1e-5)


def test_lines_meet_between_the_sizes_on_either_side() -> None:
    sizes = [1, 2, 4, 8]
    assert lab.met(sizes, [1, 4, 16, 64], [3, 6, 12, 24]) == pytest.approx(3)
    assert lab.met(sizes, [9, 9, 9, 9], [3, 3, 3, 3]) == 1
    assert lab.met(sizes, [1, 1, 1, 1], [3, 3, 3, 3]) is None
