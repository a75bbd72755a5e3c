"""Positions: the algebra of shifts against closed forms, the task, and the verdicts."""

from __future__ import annotations

import math

import pytest
import torch

from qkv.model import Layout, sinusoids
from qkv_labs import positions
from qkv_labs.positions import Moved


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


def test_right_answers_are_counted_by_task_and_position() -> None:
    class Knows(torch.nn.Module):
        """Knows the word before up to position 9, and the first word everywhere."""

        def forward(self, words: torch.Tensor, layout: Layout) -> torch.Tensor:
            before = words.roll(1, dims=1)
            before[:, 10:] = (before[:, 10:] + 1) % positions.N_WORDS
            first = words[:, :1].expand_as(words)
            both = torch.stack([before, first], dim=2)
            return torch.nn.functional.one_hot(both, positions.N_WORDS).double().flatten(2)

    before, first = positions.right_by_position(Knows(), 32).T.tolist()  # type: ignore[arg-type]
    assert before == [1.0] * 9 + [0.0] * 22
    assert first == [1.0] * 31


def test_an_arm_has_all_tasks_at_all_lengths() -> None:
    arm, tables = positions.measure_arm("alibi", False, range(2), steps=2)
    assert not tables
    for shares in (arm.within, arm.twice, arm.four_times):
        assert {task: len(seeds) for task, seeds in shares.items()} == dict.fromkeys(
            positions.TASKS, 2
        )
    assert {len(points) for points in arm.by_position.values()} == {16}
