"""The logit lens: what each layer would predict if it were the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from rich.console import RenderableType
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.answers.answer import Answer, View, lacks_probabilities, the_trace
from qkv.inspect.answers.steps import IN_TERMINAL, MAX_DRAWN, last_drawn
from qkv.inspect.draw.heat_map import turn_labels
from qkv.inspect.draw.labels import clipped, units, visible
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.style import array, caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.outputs import (
    by_position,
    entropy,
    output_names,
    position_names,
    probabilities,
)
from qkv.inspect.trace.trace import Trace
from qkv.model import Encoder, Stack, evaluating

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TICKS = 12  # layers that are named on an axis
MAX_ABREAST = 24  # outputs side by side in a figure; of more, the last ones are drawn


@dataclass(frozen=True)
class Lens(Answer):
    """Predictions of each layer, the input first, at each output."""

    layers: tuple[str, ...]
    tokens: tuple[str, ...]  # at which the outputs are predicted
    candidates: tuple[tuple[tuple[str, ...], ...], ...]  # (layers, outputs, k): the best ones
    probabilities: Tensor  # (layers, outputs, k)
    of_last: Tensor  # (layers, outputs): probability of the last layer's best candidate
    entropy: Tensor  # (layers, outputs) in nats

    def last_outputs(self, most: int) -> Lens:
        """Cut to the last outputs."""
        return replace(
            self,
            tokens=self.tokens[-most:],
            candidates=tuple(layer[-most:] for layer in self.candidates),
            probabilities=self.probabilities[:, -most:],
            of_last=self.of_last[:, -most:],
            entropy=self.entropy[:, -most:],
        )

    def figure(self) -> Figure:
        """Draw the best candidate of each layer at each output, coloured by its probability."""
        lens = self.last_outputs(MAX_ABREAST)
        width, best = len(lens.tokens), array(lens.probabilities[:, :, 0])
        figure, axes = new_figure(max(4.5, 0.85 * width + 1.8), 0.34 * len(lens.layers) + 1.7)
        image = axes.imshow(best, aspect="auto", vmin=0, vmax=1, origin="lower")
        for row, layer in enumerate(lens.candidates):
            for column, names in enumerate(layer):
                axes.text(
                    column,
                    row,
                    clipped(visible(names[0]), 12),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="black" if best[row, column] < 0.5 else "white",
                    parse_math=False,
                )
        tokens = list(map(visible, lens.tokens))
        axes.set_xticks(range(width), tokens, parse_math=False)
        if width > 8:
            turn_labels(axes.xaxis)
        axes.set_yticks(range(len(lens.layers)), localized_layers(lens.layers))
        axes.grid(False)
        axes.set(xlabel=localized("at this token"))
        label = localized("probability of the best candidate")
        figure.colorbar(image, ax=axes, label=label)
        note = last_drawn(len(self.tokens), MAX_ABREAST, "outputs")
        title = localized("What each layer would predict if it were the last one")
        caption(figure, title, note)
        return figure

    def parts(self) -> list[Table]:
        """The candidates of the last outputs, last layer first."""
        lens = self.last_outputs(MAX_DRAWN)
        layers = zip(
            localized_layers(lens.layers), lens.candidates, lens.probabilities.tolist(), strict=True
        )
        rows = [
            (
                layer,
                *(
                    units(zip(*best, strict=True), ".2f")
                    for best in zip(names, values, strict=True)
                ),
            )
            for layer, names, values in layers
        ]
        title = localized("Logit lens, last layer first")
        return [Table(("", *map(visible, lens.tokens)), rows[::-1], title)]

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield tables with the last layer first, and as many outputs side by side as fit."""
        lens = self.last_outputs(IN_TERMINAL)
        fit = max(1, (width - 10) // 15)
        for start in range(0, len(lens.tokens), fit):
            part = slice(start, start + fit)
            rows = [
                (
                    layer,
                    *(
                        f"{clipped(visible(best), 8)} {value:.2f}"
                        for (best, *_), value in zip(names[part], values[part, 0], strict=True)
                    ),
                )
                for layer, names, values in zip(
                    localized_layers(lens.layers), lens.candidates, lens.probabilities, strict=True
                )
            ]
            heads = [clipped(visible(token), 13) for token in lens.tokens[part]]
            yield from Table(("", *heads), rows[::-1]).text(width)
            yield ""


def lens(trace: Trace, k: int = 1, stack: str | None = None, row: int = 0) -> Lens:
    """Read every layer's residual stream with the model's own last norm and output."""
    own = stack_of(trace, None)
    if stack not in (None, own):
        raise UserError(f"Only the {own} of this model has an output to read its layers with.")
    if "probabilities" not in trace:
        raise UserError("This model has no output that its layers could be read with.")
    if k < 1:
        raise UserError(f"k is {k}, but must be at least 1.")
    last = by_position(trace, trace["probabilities"][row].float(), row)
    winners = last.argmax(dim=-1, keepdim=True)
    read = _reader(trace, getattr(trace.model, own), row)
    names, values, of_last, unsure = [], [], [], []
    keys = stream_keys(trace, own)
    for stream in trace.peek(keys).values():
        probable = read(stream)
        best, ids = probable.topk(min(k, probable.shape[1]), dim=-1)
        values.append(best)
        names.append(
            tuple(
                tuple(output_names(trace, row_ids, row, position))
                for position, row_ids in enumerate(ids.tolist())
            )
        )
        of_last.append(probable.gather(1, winners)[:, 0])
        unsure.append(entropy(probable, trace.inputs))
    return Lens(
        layers=tuple(layer_names(keys)),
        tokens=tuple(position_names(trace, row)),
        candidates=tuple(names),
        probabilities=torch.stack(values),
        of_last=torch.stack(of_last),
        entropy=torch.stack(unsure),
    )


def stack_of(trace: Trace, stack: str | None) -> str:
    """Check the name of a stack; by default the one that leads to the output."""
    name = stack or ("encoder" if isinstance(trace.model, Encoder) else "decoder")
    if f"{name}.output" not in trace:
        has = [own for own in ("encoder", "decoder") if f"{own}.output" in trace]
        raise UserError(f"This model has no stack {name!r}; it has {' and '.join(has)}.")
    return name


def stream_keys(trace: Trace, stack: str) -> list[str]:
    """Keys of the residual stream: a stack's input, and the residual after each of its layers."""
    keys = [f"{SIDES[stack]}.input", *trace.names(f"{stack}.*.feed_forward.residual")]
    convolution = f"{stack}.0.convolution.residual"
    if convolution in trace:
        keys[1] = convolution
    return keys


def layer_names(keys: list[str]) -> list[str]:
    """Names of the points of a residual stream."""
    return ["input", *(f"layer {key.split('.')[1]}" for key in keys[1:])]


def localized_layers(names: Sequence[str]) -> list[str]:
    """Names of the points of a residual stream in the current language."""
    return [
        localized("layer {layer}", layer=name.removeprefix("layer "))
        if name.startswith("layer ")
        else localized(name)
        for name in names
    ]


def name_layers(axes: Axes, names: Sequence[str]) -> int:
    """Name the points of a residual stream along an axis; returns how far apart the names are."""
    every = -(-len(names) // MAX_TICKS)
    shown = localized_layers(names)[::every]
    axes.set_xticks(range(0, len(names), every), shown, rotation=45, ha="right")
    return every


def _reader(trace: Trace, stack: Stack, row: int) -> Callable[[Tensor], Tensor]:
    """Return a function from a residual stream (B, N, D) to one row's probabilities."""
    model, inputs = trace.model, trace.inputs

    def logits(x: Tensor) -> Tensor:
        if isinstance(model, Encoder):
            assert inputs.source is not None
            pooled = model.config.head == "sequence"
            return model.head(model.pooler(x, inputs.source.layout) if pooled else x)
        return model.output(x)

    @torch.no_grad()
    def read(stream: Tensor) -> Tensor:
        with evaluating(model):
            return by_position(trace, probabilities(logits(stack.norm(stream)), inputs)[row], row)

    return read


VIEW = View(
    "Logit lens",
    "What each layer would predict if it were the last one.",
    lambda question: the_trace(question).lens(question.top),
    lacks_probabilities,
)
