"""Pictures of how good a classifier is: its confusions, and its confidence beside its accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.errors import UserError
from qkv.evaluation.calibration import Calibration
from qkv.evaluation.classification import ClassReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_confusion(report: ClassReport, path: Path) -> None:
    """Draw the confusion matrix: counts in the cells, the fraction of each gold class as colour."""
    from qkv.inspect.draw import new_figure, styled
    from qkv.inspect.draw.figure import save_figure

    if report.confusion is None:
        raise UserError("There is no confusion matrix of several labels a text to draw.")
    numbers = range(len(report.labels))
    labels = [label.replace("$", r"\$") for label in report.labels]  # a $ would begin a formula
    side = min(max(4.0, 1.5 + 0.6 * len(numbers)), 30.0)  # inches
    points = min(10.0, 500 / len(numbers))
    with styled():
        figure, axes = new_figure(side + 1, side)
        axes.grid(False)
        fractions = report.confusion / report.confusion.sum(axis=1, keepdims=True).clip(min=1)
        image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, interpolation="none")
        figure.colorbar(image, label="fraction of the gold class")
        axes.set_xticks(numbers, labels, rotation=45, ha="right", fontsize=points)
        axes.set_yticks(numbers, labels, fontsize=points)
        axes.set(xlabel="found", ylabel="gold", title=f"accuracy {100 * report.accuracy:.2f} %")
        for row, column in np.argwhere(report.confusion).tolist():  # zeros are left blank
            colour = "white" if fractions[row, column] > 0.5 else "black"
            count = axes.text(column, row, str(report.confusion[row, column]), color=colour)
            count.set(ha="center", va="center", fontsize=points)
        save_figure(figure, path)


def draw_reliability(calibration: Calibration, path: Path) -> None:
    """Draw how often answers are right at each confidence, beside the diagonal where both agree."""
    from qkv.inspect.draw import new_figure, styled
    from qkv.inspect.draw.figure import save_figure

    with styled():
        figure, axes = new_figure(5.5, 5)
        axes.plot([0, 100], [0, 100], color="grey", linestyle="--", label="perfectly calibrated")
        _draw_bins(axes, calibration)
        axes.set(xlim=(0, 100), ylim=(0, 108), xlabel="confidence, %", ylabel="accuracy, %")
        axes.set_title(calibration.describe(), fontsize="small")
        axes.legend(loc="upper left", fontsize="small")
        save_figure(figure, path)


def _draw_bins(axes: Axes, calibration: Calibration) -> None:
    filled = [part for part in calibration.bins if part.count]
    middles = [50 * (part.low + part.high) for part in filled]
    width = 100 / len(calibration.bins)
    accuracies = [100 * part.accuracy for part in filled]
    gaps = [100 * (part.confidence - part.accuracy) for part in filled]
    axes.bar(middles, accuracies, width, edgecolor="black", label="accuracy, number of answers")
    axes.bar(middles, gaps, width, bottom=accuracies, color="red", alpha=0.3, label="gap")
    for middle, accuracy, part in zip(middles, accuracies, filled, strict=True):
        axes.text(middle, accuracy + 1, str(part.count), ha="center", fontsize="x-small")
