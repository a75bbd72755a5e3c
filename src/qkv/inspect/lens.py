"""The logit lens: what each layer would predict if it were the last one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.decode.generate import evaluating
from qkv.errors import UserError
from qkv.inspect.outputs import probabilities
from qkv.inspect.steps import by_output, distributions, entropy, output_names
from qkv.model import Encoder, Stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.trace import Trace


@dataclass(frozen=True)
class Lens:
    """For each layer, the input first, and each output: what it would say, and how surely."""

    layers: tuple[str, ...]
    tokens: tuple[str, ...]  # at which the outputs are said
    names: tuple[tuple[tuple[str, ...], ...], ...]  # (layers, outputs, k): the best candidates
    probabilities: Tensor  # (layers, outputs, k)
    of_last: Tensor  # (layers, outputs): how probable each holds what the last layer says
    entropy: Tensor  # (layers, outputs) in nats

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """A figure: layers upwards, outputs to the right, the best candidate in each cell."""
        from qkv.inspect.views import draw_lens

        return draw_lens(self, viewer_fonts)

    def _repr_html_(self) -> str:
        from qkv.inspect.views import lens_fragment

        return lens_fragment(self)


def lens(trace: Trace, k: int = 1, stack: str | None = None, row: int = 0) -> Lens:
    """Read every layer's residual stream with the model's own last norm and output."""
    own = "encoder" if isinstance(trace.model, Encoder) else "decoder"
    if stack not in (None, own):
        raise UserError(f"Only the {own} of this model has an output to read its layers with.")
    if "probabilities" not in trace:
        raise UserError("This model has no output that its layers could be read with.")
    if k < 1:
        raise UserError(f"k is {k}, but must be at least 1.")
    last, tokens = distributions(trace, row)
    winners = last.argmax(dim=-1)
    read = _reader(trace, getattr(trace.model, own), row)
    names, values, of_last, unsure = [], [], [], []
    keys = stream_keys(trace, own)
    for value in trace.peek(keys).values():
        probable = read(value)
        best, ids = probable.topk(min(k, probable.shape[1]), dim=-1)
        values.append(best)
        names.append(tuple(tuple(output_names(trace, one, row)) for one in ids.tolist()))
        of_last.append(probable.gather(1, winners[:, None])[:, 0])
        unsure.append(entropy(trace, probable))
    return Lens(
        layers=tuple(layer_names(keys)),
        tokens=tuple(tokens),
        names=tuple(names),
        probabilities=torch.stack(values),
        of_last=torch.stack(of_last),
        entropy=torch.stack(unsure),
    )


def stack_of(trace: Trace, stack: str | None) -> str:
    """The stack that is asked for, by default the one that leads to the output."""
    found = stack or ("encoder" if isinstance(trace.model, Encoder) else "decoder")
    if f"{found}.output" not in trace:
        has = [one for one in ("encoder", "decoder") if f"{one}.output" in trace]
        raise UserError(f"This model has no stack {found!r}; it has {' and '.join(has)}.")
    return found


def stream_keys(trace: Trace, stack: str) -> list[str]:
    """The residual stream: a stack's input, and what stands after each of its layers."""
    side = "source" if stack == "encoder" else "target"
    keys = [f"{side}.input", *trace.keys(f"{stack}.*.feed_forward.residual")]
    wider = f"{stack}.0.convolution.residual"
    if wider in trace:
        keys[1] = wider
    return keys


def layer_names(keys: list[str]) -> list[str]:
    """What the points of a residual stream are called."""
    return ["input", *(f"layer {key.split('.')[1]}" for key in keys[1:])]


def _reader(trace: Trace, stack: Stack, row: int) -> Callable[[Tensor], Tensor]:
    """From a residual stream (B, N, D) to one row's probabilities (outputs, V)."""
    model, reading = trace.model, trace.reading

    @torch.no_grad()
    def read(stream: Tensor) -> Tensor:
        with evaluating(model):
            said = say(stack.norm(stream))
        return by_output(trace, probabilities(said.float(), reading)[row], row)

    def say(x: Tensor) -> Tensor:
        if isinstance(model, Encoder):
            assert reading.source is not None
            pooled = model.config.head == "sequence"
            return model.head(model.pooler(x, reading.source.layout) if pooled else x)
        return model.output(x)

    return read
