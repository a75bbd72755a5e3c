"""Pictures of how good a classifier is: its confusions, and its confidence beside its accuracy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import UserError
from qkv.evaluate.calibration import Calibration
from qkv.evaluate.classification import Report
from qkv.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
# The families with Han glyphs that systems usually come with, and those that people install.
HAN_FAMILIES = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "STHeiti",
    "Microsoft YaHei",
    "SimHei",
    "SimSun",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Noto Sans CJK JP",
    "Droid Sans Fallback",
    "AR PL UMing CN",
    "Arial Unicode MS",
)


def draw_confusion(report: Report, path: Path) -> None:
    """Draw the confusion matrix: counts in the cells, the share of each gold class as colour."""
    if report.confusion is None:
        raise UserError("There is no confusion matrix of several labels a text to draw.")
    places = range(len(report.labels))
    side = min(max(4.0, 1.5 + 0.6 * len(places)), 30.0)  # inches
    points = min(10.0, 500 / len(places))
    with _picture(path, width=side + 1, height=side) as figure:
        axes = figure.add_subplot()
        shares = report.confusion / report.confusion.sum(axis=1, keepdims=True).clip(min=1)
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        figure.colorbar(image, label="share of the gold class")
        axes.set_xticks(places, report.labels, rotation=45, ha="right", fontsize=points)
        axes.set_yticks(places, report.labels, fontsize=points)
        axes.set(xlabel="found", ylabel="gold", title=f"accuracy {100 * report.accuracy:.2f} %")
        for row, column in np.argwhere(report.confusion).tolist():  # zeros are left blank
            colour = "white" if shares[row, column] > 0.5 else "black"
            count = axes.text(column, row, str(report.confusion[row, column]), color=colour)
            count.set(ha="center", va="center", fontsize=points)


def draw_reliability(calibration: Calibration, path: Path) -> None:
    """Draw how often answers are right at each confidence, beside the diagonal where both agree."""
    with _picture(path, width=5.5, height=5) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 100], [0, 100], color="grey", linestyle="--", label="perfectly calibrated")
        _draw_bins(axes, calibration)
        axes.set(xlim=(0, 100), ylim=(0, 108), xlabel="confidence, %", ylabel="accuracy, %")
        axes.set_title(calibration.describe(), fontsize="small")
        axes.legend(loc="upper left", fontsize="small")


def _draw_bins(axes: Axes, calibration: Calibration) -> None:
    held = [part for part in calibration.bins if part.count]
    middles = [50 * (part.low + part.high) for part in held]
    width = 100 / len(calibration.bins)
    accuracies = [100 * part.accuracy for part in held]
    gaps = [100 * (part.confidence - part.accuracy) for part in held]
    axes.bar(middles, accuracies, width, edgecolor="black", label="accuracy and how many answers")
    axes.bar(middles, gaps, width, bottom=accuracies, color="red", alpha=0.3, label="gap")
    for middle, accuracy, part in zip(middles, accuracies, held, strict=True):
        axes.text(middle, accuracy + 1, str(part.count), ha="center", fontsize="x-small")


@contextmanager
def _picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure to draw on, in inches, and write it when the block ends well."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise UserError(
            f"{path} is no picture that can be written: its name must end in .png or .svg."
        )
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Pictures need matplotlib: pip install matplotlib.") from error
    # Words of an SVG stay words, which any viewer can show, and a $ in a label is no formula.
    look: Any = {"svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "qkv"}
    with matplotlib.rc_context(look | {"font.family": _families()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with replacing(path) as beside:
            metadata = {"Date": None} if kind == "svg" else None  # the same picture, the same file
            figure.savefig(beside, format=kind, dpi=150, metadata=metadata)


def _families() -> list[str]:
    """The usual font, and where it has no glyph one of those with Han characters."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(family for family in HAN_FAMILIES if family in installed)]
