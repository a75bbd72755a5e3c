"""A lab that is done at once, for tests of all that is around labs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qkv_labs import Interval, Lab, Settings, SubClaim, Table, Verdict, Words, compare
from qkv_labs.lab import Literature, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Measured:
    draws: list[float]
    worst: float
    threads: int
    outcome: Outcome


def toy_lab(name: str = "scale", outcome: Outcome = "holds", **others: Any) -> Lab[Measured]:
    """A lab that draws random numbers and gives this verdict."""
    return Lab(
        name=name,
        title=Words(f"Toy of {name}", f"{name}的玩具"),
        claim=Words("Draws lie below 1. They never leave.", "随机数都小于一。它们从不越界。"),
        experiment=Words("Three draws are looked at.", "看三个随机数。"),
        measure=others.pop("measure", measuring(outcome)),
        tables=tables,
        draw=draw,
        judge=judge,
        **others,
    )


def measuring(outcome: Outcome) -> Callable[[Settings], Measured]:
    def measure(settings: Settings) -> Measured:
        settings.tell("drawing")
        draws = torch.rand(5 if settings.full else 3).tolist()
        return Measured(draws, float("inf"), torch.get_num_threads(), outcome)

    return measure


def failing(settings: Settings) -> Measured:
    raise RuntimeError("the toy broke")


def tables(measured: Measured) -> tuple[Table, ...]:
    rows = [(f"[{index}]", f"{draw:.3f}") for index, draw in enumerate(measured.draws)]
    return (Table(Words("All draws", "所有随机数"), ("place", "a|b"), rows),)


def draw(measured: Measured) -> Figure:
    from qkv.inspect.draw import new_figure

    figure, axis = new_figure()
    axis.plot(measured.draws)
    return figure


SECOND = {"holds": 2.0, "refuted": 0.5, "undecided": 1.0}


def judge(measured: Measured) -> Verdict:
    """One sub-claim that holds, with a work on it, and one of the outcome asked for."""
    holds = SubClaim(
        Words("All are small.", "都很小。"),
        [compare(0.5, "<", 1, ("largest", ""))],
        Literature(True, "Toy 2020, “Small Numbers”"),
    )
    unsure = Interval(1.0, 0.9, 1.1) if measured.outcome == "undecided" else 1.0
    asked = SubClaim(
        Words("None is large.", "没有大的。"),
        [compare(unsure, "<", SECOND[measured.outcome], form=".2f")],
        Literature(False, "Toy 2021, “Large Numbers”"),
    )
    return Verdict([holds, asked])


def animate(measured: Measured, path: Path) -> None:
    from PIL import Image

    frames = [Image.new("L", (4, 4), shade) for shade in (0, 255)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
