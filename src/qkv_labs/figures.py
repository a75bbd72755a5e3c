"""What the figures of several labs share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qkv.inspect.draw import COLOURS, DIVERGING, MARKERS, new_figure, styled
from qkv_labs.lab import Outcome, Verdict
from qkv_labs.printed import wrap
from qkv_labs.texts import Texts
from qkv_labs.tools import mean_and_spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when a figure is drawn

__all__ = [
    "COLOURS",
    "DIVERGING",
    "GREY",
    "MARKERS",
    "Figure",
    "add_verdict",
    "error_bars",
    "look",
    "new_figure",
    "styled",
    "ticks",
    "translate",
    "within_percent",
]

GREY = "#999999"
OUTCOMES: dict[Outcome, str] = {
    "holds": COLOURS[2],
    "refuted": COLOURS[1],
    "undecided": GREY,
}


def look(index: int, **options: Any) -> dict[str, Any]:
    """Return the colour and marker of the line number `index`, and further options."""
    return {"color": COLOURS[index], "marker": MARKERS[index], **options}


def within_percent(
    means: Sequence[float], spreads: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Cut the spreads of percentages, below and above their means, at 0 and at 100."""
    pairs = list(zip(means, spreads, strict=True))
    below, above = [min(s, m) for m, s in pairs], [min(s, 100 - m) for m, s in pairs]
    return below, above


def error_bars(
    axes: Any,
    x: Sequence[float],
    samples: Iterable[Sequence[float]],
    index: int,
    label: str,
    scale: float = 1,
) -> None:
    """Draw the mean and spread of percentages at each x."""
    points = [mean_and_spread([scale * value for value in sample]) for sample in samples]
    means, spreads = zip(*points, strict=True)
    spreads = within_percent(means, spreads)
    axes.errorbar(x, means, spreads, capsize=3, label=label, **look(index))


def ticks(axes: Any, values: Sequence[float]) -> None:
    """Label these values on the x axis, and no others."""
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def add_verdict(figure: Figure, verdict: Verdict, language: str) -> None:
    """Write each sub-claim with its mark below a figure."""
    width, height = figure.get_size_inches()
    line = 0.17 / height  # inches
    y = -0.4 * line
    for sub_claim in verdict.sub_claims:
        lines = wrap(getattr(sub_claim.text, language), int(14 * width))
        at: dict[str, Any] = {"va": "top", "fontsize": 8}
        figure.text(0.01, y, sub_claim.mark, color=OUTCOMES[sub_claim.outcome], weight="bold", **at)
        figure.text(0.01 + 0.2 / width, y, "\n".join(lines), **at)
        y -= line * (len(lines) + 0.2)


def translate(figure: Figure, texts: Texts) -> None:
    """Replace the English of a figure by its lab's Chinese."""
    from matplotlib.text import Text

    figure.draw_without_rendering()  # ticks get their texts when they are drawn
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label.get_text() for label in axis.get_majorticklabels()]
            chinese = [texts.label(label) for label in labels]
            if chinese != labels:  # every drawing writes them anew
                axis.set_ticks(axis.get_majorticklocs(), chinese)
    for text in figure.findobj(Text):
        if text.get_text():
            text.set_text(texts.label(text.get_text()))
