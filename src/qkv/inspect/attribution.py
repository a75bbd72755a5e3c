"""Which tokens an output leaned on: gradient × input, and attention rollout.

Gradient × input is the sounder one. It follows everything that the model does with a token, values
and feed-forward layers included, to first order; rollout multiplies attention maps as if what is
looked at were handed on unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.probe import Ask, Edit, Probe, run
from qkv.inspect.reading import IGNORE
from qkv.inspect.steps import output_names
from qkv.model import Encoder, EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.trace import Trace


@dataclass(frozen=True)
class Attribution:
    """For each output: how each token that was read counts for it (above 0) or against it."""

    outputs: tuple[str, ...]
    positions: tuple[int, ...]
    tokens: dict[str, tuple[str, ...]]  # "source" and "target": what was read
    scores: dict[str, Tensor]  # (outputs, tokens) of each side

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """A figure: outputs downwards, tokens to the right, for and against in two colours."""
        from qkv.inspect.views import draw_attribution

        return draw_attribution(self, viewer_fonts)

    def _repr_html_(self) -> str:
        from qkv.inspect.views import attribution_fragment

        return attribution_fragment(self)


def attribution(
    trace: Trace, positions: int | Sequence[int] | None = None, output: int | None = None,
    row: int = 0,
) -> Attribution:  # fmt: skip
    """Gradient of an output's log-odds by each token's input vector, times that vector, over D.

    The output at a position is `output`, else its label, else the likeliest one.
    """
    if "logits" not in trace:
        raise UserError("This model has no output; trace one that has a head.")
    leaves: dict[str, Tensor] = {}
    logits = _logits(trace, leaves)[row].float()
    said = logits.T if trace.reading.says == "spans" else logits.reshape(-1, logits.shape[-1])
    sides = {side: tuple(trace.tokens(side, row)) for side in leaves}
    places = _places(trace, positions, said, row)
    chosen = [_choice(trace, place, said, output, row) for place in places]
    scores: dict[str, list[Tensor]] = {side: [] for side in leaves}
    for place, id in zip(places, chosen, strict=True):
        goal = _goal(trace, said[place], id)
        gradients = torch.autograd.grad(
            goal, list(leaves.values()), retain_graph=True, allow_unused=True
        )
        for (side, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            gradient = torch.zeros_like(leaf) if gradient is None else gradient
            counted = (gradient * leaf).sum(dim=-1)[row, : len(sides[side])]
            scores[side].append(counted.detach().float())
    return Attribution(
        outputs=tuple(output_names(trace, chosen, row)), positions=tuple(places), tokens=sides,
        scores={side: torch.stack(rows) for side, rows in scores.items()},
    )  # fmt: skip


def _logits(trace: Trace, leaves: dict[str, Tensor]) -> Tensor:
    """A pass that remembers its way, from inputs that gradients are asked of."""

    def leaf(side: str) -> Edit:
        def become(value: Tensor) -> Tensor:
            leaves[side] = value.detach().clone().requires_grad_()
            return leaves[side]

        return Edit(f"{side}.input", become)

    sides = [key.partition(".")[0] for key in trace.keys("*.input")]
    probe = Probe([Ask("logits")], [*trace.edits, *map(leaf, sides)])
    with torch.enable_grad():
        run(trace.model, trace.reading, probe)
    return probe.found[Ask("logits")]


def _places(
    trace: Trace, positions: int | Sequence[int] | None, said: Tensor, row: int
) -> list[int]:
    if isinstance(positions, int):
        positions = [positions]
    count = len(said)
    if trace.reading.says == "tokens":
        count = len(trace.tokens("target" if trace.reading.target else "source", row))
    for place in positions or ():
        if not -count <= place < count:
            raise UserError(f"There is no output {place}: this trace has {count}, from 0 on.")
    return list(range(count)) if positions is None else [place % count for place in positions]


def _choice(trace: Trace, place: int, said: Tensor, output: int | None, row: int) -> int:
    if output is not None:
        return output
    labels = trace.reading.labels
    if labels is not None and trace.reading.says in ("tokens", "classes", "spans"):
        label = int(labels[row].reshape(-1)[place])
        if label != IGNORE:
            return label
    return int(said[place].argmax())


def _goal(trace: Trace, logits: Tensor, id: int) -> Tensor:
    """The log-odds of an output: log P would hardly follow anything where P is almost 1."""
    if trace.reading.says in ("number", "each"):
        return logits[id]
    others = torch.arange(len(logits), device=logits.device) != id
    return logits[id] - logits[others].logsumexp(dim=0)


def rollout(trace: Trace, stack: str | None = None, row: int = 0) -> Tensor:
    """Attention maps multiplied through the layers, half of each token staying where it is.

    Of an encoder-decoder: what target tokens (T) get of source tokens (S), unless one stack is
    asked for, which gives what its tokens get of each other.
    """
    if stack is None and isinstance(trace.model, EncoderDecoder):
        return _across(trace, row)
    return _within(
        trace, stack or ("encoder" if isinstance(trace.model, Encoder) else "decoder"), row
    )


def _within(trace: Trace, stack: str, row: int) -> Tensor:
    count = len(trace.tokens("source" if stack == "encoder" else "target", row))
    handed = torch.eye(count)
    for at in _layers(trace, stack):
        handed = _mixed(trace, f"{at}.self_attention", row, count, count) @ handed
    return handed


def _across(trace: Trace, row: int) -> Tensor:
    n_source, n_target = len(trace.tokens("source", row)), len(trace.tokens("target", row))
    memory = _within(trace, "encoder", row)
    handed = torch.zeros(n_target, n_source)
    for at in _layers(trace, "decoder"):
        handed = _mixed(trace, f"{at}.self_attention", row, n_target, n_target) @ handed
        looked = _mean_weights(trace, f"{at}.cross_attention", row)[:n_target, :n_source]
        handed = (handed + looked @ memory) / 2
    return handed


def _layers(trace: Trace, stack: str) -> list[str]:
    return [key.removesuffix(".feed_forward.residual")
            for key in trace.keys(f"{stack}.*.feed_forward.residual")]  # fmt: skip


def _mixed(trace: Trace, at: str, row: int, n_queries: int, n_keys: int) -> Tensor:
    """(A + I) / 2: half is what is looked at, half what was there."""
    looked = _mean_weights(trace, at, row)[:n_queries, :n_keys]
    return (looked + torch.eye(n_queries)) / 2


def _mean_weights(trace: Trace, at: str, row: int) -> Tensor:
    (value,) = trace.peek([f"{at}.weights"]).values()
    return value[row].float().mean(dim=0).cpu()
