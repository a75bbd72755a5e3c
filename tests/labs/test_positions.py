"""Positions: the algebra of shifts against closed forms, the task, and the verdicts."""

from __future__ import annotations

import math

import pytest
import torch

from qkv.model import Layout, sinusoids
from qkv_labs import positions
from qkv_labs.positions import Arm, Measured, Moved, Shift


def made_up(four_times: float = 0.2, anywhere: float = 0.95) -> Measured:
    curve = [1.0] * 4 + [four_times] * 12
    arms = [
        Arm("sinusoidal", False, [1.0, 1.0], [0.3, 0.3], [four_times, four_times], curve),
        Arm("rotary", False, [1.0, 1.0], [1.0, 1.0], [0.99, 0.99], curve),
        Arm("sinusoidal", True, [1.0, 1.0], [1.0, 1.0], [anywhere, anywhere], curve),
        Arm("learned", True, [1.0, 1.0], [1.0, 1.0], [0.85, 0.85], curve),
    ]
    residuals = {str(k): 1e-8 for k in positions.SHIFTS}
    return Measured(arms, [Shift("sinusoidal", residuals, [1.0, 0.5], [0.0, 1e-9])], 7e-8)


def test_a_shift_of_sinusoids_is_one_rotation_for_all_places() -> None:
    table = sinusoids(40, 16).double()
    for k in (1, 7, 30):
        turned = table[:-k] @ positions.rotation(k, 16).T
        torch.testing.assert_close(turned, table[k:], atol=1e-6, rtol=0)
    inverse = positions.rotation(5, 16).T @ positions.rotation(5, 16)
    torch.testing.assert_close(inverse, torch.eye(16, dtype=torch.float64))
    assert positions.closed_form() < 1e-6


def test_the_fit_finds_a_linear_map_where_there_is_one_and_only_there() -> None:
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64)).Q
    row, rows = torch.randn(4, generator=generator, dtype=torch.float64), []
    for _ in range(40):
        rows.append(row)
        row = turn @ row
    assert positions.shift_residual(torch.stack(rows), 3) < 1e-10
    assert positions.shift_residual(torch.randn(64, 32, generator=generator), 1) > 0.9


def test_products_of_sinusoids_depend_on_the_distance_alone() -> None:
    means, spreads = positions.products(sinusoids(64, 8))
    expected = [
        sum(math.cos(k * 10000 ** (-i / 4)) for i in range(4)) / 4 for k in range(len(means))
    ]
    assert means == pytest.approx(expected, abs=1e-6)
    assert max(spreads) < 1e-6
    assert min(positions.products(torch.randn(64, 8))[1]) > 0.05


def test_moved_rows_stand_later_and_only_absolute_schemes_notice() -> None:
    places = Moved(start=5).positions(3, torch.device("cpu"))
    assert places.tolist() == [5, 6, 7]
    words = torch.randint(positions.N_WORDS, (2, 6))
    for scheme, notices in (("rotary", False), ("relative", False), ("sinusoidal", True)):
        model = positions.build(scheme)
        apart = (model(words, Moved(start=9)) - model(words, Layout())).abs().max()
        assert bool(apart > 1e-3) is notices, scheme


def test_right_answers_are_counted_by_place() -> None:
    class Before(torch.nn.Module):
        """Knows the word before up to place 9, and no word after."""

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            known = words.roll(1, dims=1)
            known[:, 10:] = (known[:, 10:] + 1) % positions.N_WORDS
            return torch.nn.functional.one_hot(known, positions.N_WORDS).double()

    found = positions.right_by_position(Before(), 32)  # type: ignore[arg-type]
    assert found.tolist() == [1.0] * 9 + [0.0] * 22


def test_each_outcome_can_be_reached() -> None:
    assert positions.judge(made_up()).outcome == "holds when"
    assert positions.judge(made_up(four_times=0.97)).outcome == "holds"
    assert positions.judge(made_up(anywhere=0.4)).outcome == "does not hold"


def test_who_carries_over_is_read_from_the_figures() -> None:
    def carried(m: Measured) -> list[str]:
        return [positions.carried(m, whether).en for whether in (True, False)]

    m = made_up()
    assert carried(m) == ["rotary 99 %", "sinusoidal 20 %"]
    assert carried(made_up(four_times=0.97)) == ["sinusoidal 97 %, rotary 99 %", "–"]
    unlearnt = Arm("none", False, [0.2], [0.1], [0.2], [0.2])
    assert carried(Measured([unlearnt], m.shifts, m.closed_form)) == ["–", "–"]


def test_a_wrong_rotation_forbids_holds() -> None:
    m = made_up(four_times=0.97)
    assert positions.judge(Measured(m.arms, m.shifts, 1e-3)).outcome != "holds"
