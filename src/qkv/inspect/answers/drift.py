"""Drift: how far the residual stream has moved from its input after each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.inspect.answers.answer import Answer, View, the_trace
from qkv.inspect.answers.lens import (
    layer_names,
    localized_layers,
    name_layers,
    stack_of,
    stream_keys,
)
from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.labels import visible
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.style import COLOURS, MARKERS, caption, legend, new_figure
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FAR = 30.0  # times a token's first length, above which the axis is logarithmic


@dataclass(frozen=True)
class Drift(Answer):
    """The residual stream compared with its input, for each layer (the input first) and token."""

    layers: tuple[str, ...]
    tokens: tuple[str, ...]
    cosine: Tensor  # (layers, tokens): of the angle to the input; 1 is its direction
    distance: Tensor  # (layers, tokens): |h − input| / |input|
    step: Tensor  # (layers, tokens): |h − h before the layer| / |h before the layer|

    def parts(self) -> list[HeatMap]:
        """The cosines: layers down, tokens across."""
        layers = [layer.replace(" ", "\u00a0") for layer in localized_layers(self.layers)]
        axes: Any = {"value": "cosine", "down": "layer", "across": "token"}
        return [HeatMap(self.cosine, layers, self.tokens, **axes)]

    def figure(self) -> Figure:
        """Draw cosine and distance over the layers."""
        tokens = list(map(visible, self.tokens))
        named = len(tokens) <= len(MARKERS)
        figure, panels = new_figure(8.4, 3.4, ncols=2)
        for axes, values in zip(panels, (self.cosine, self.distance), strict=True):
            every = name_layers(axes, self.layers)
            _lines(axes, values.cpu().T.tolist(), tokens, every if named else None)
        lowest = min(-0.05, float(self.cosine.min()) - 0.05)
        panels[0].set(ylabel=localized("cosine to the input"), ylim=(lowest, 1.05))
        panels[1].set(ylabel=localized("distance from the input / its length"))
        if (farthest := float(self.distance.max())) > FAR:  # would flatten all other lines
            panels[1].set_yscale("symlog", linthresh=1.0)
            panels[1].set_ylim(0, 2 * farthest)
        legend(figure, *panels[0].get_legend_handles_labels(), loc="outside right upper")
        caption(figure, localized("How far the residual stream has moved from its input"))
        return figure


def drift(trace: Trace, stack: str | None = None, row: int = 0) -> Drift:
    """Compare a stack's residual stream with its input."""
    stack = stack_of(trace, stack)
    keys = stream_keys(trace, stack)
    tokens = trace.tokens(SIDES[stack], row)
    values = trace.peek(keys).values()
    stream = torch.stack([value[row, : len(tokens)].float() for value in values])
    start, before = stream[:1], torch.cat([stream[:1], stream[:-1]])  # stream: (layers, tokens, D)
    return Drift(
        layers=tuple(layer_names(keys)),
        tokens=tuple(tokens),
        cosine=F.cosine_similarity(stream, start, dim=-1),
        distance=(stream - start).norm(dim=-1) / start.norm(dim=-1),
        step=(stream - before).norm(dim=-1) / before.norm(dim=-1),
    )


def _lines(axes: Axes, values: list[list[float]], names: Sequence[str], marked: int | None) -> None:
    """Draw a line per token with a mark on every n-th layer, or else thin ones and their mean."""
    for number, (line, name) in enumerate(zip(values, names, strict=True)):
        if marked:
            axes.plot(line, label=name, marker=MARKERS[number], markevery=marked)
        else:
            label = "" if number else localized("each token")
            axes.plot(line, color="#999999", linewidth=0.5, alpha=0.6, label=label)
    if not marked:
        mean = [sum(point) / len(point) for point in zip(*values, strict=True)]
        axes.plot(mean, color=COLOURS[0], linewidth=2.4, label=localized("mean"))


VIEW = View(
    "Drift",
    "How far the residual stream has turned from its input: the cosine, 1 for not at all.",
    lambda question: the_trace(question).drift(),
)
