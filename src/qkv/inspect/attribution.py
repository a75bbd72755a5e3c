"""Which tokens an output leaned on, by gradients: integrated, or times the input.

Both follow everything that the model does with a token, values and feed-forward layers included.
Gradient × input asks what a little more of a token's vector would do. Norms undo most of that, and
so it often misses what taking the token away does. Integrated gradients (Sundararajan et al. 2017)
ask all along the way from a text whose words are all alike to the text itself: they are worth
their passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from qkv.data import IGNORE
from qkv.errors import UserError
from qkv.inspect.probe import Ask, Edit, Probe, run
from qkv.inspect.reading import repeated
from qkv.inspect.steps import by_output, output_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.trace import Trace

Method = Literal["integrated", "gradient"]
Points = list[float] | None  # of the way to the text, 0 … 1; None: at its end alone
AT_ONCE = 2048  # tokens in a pass that remembers its way


@dataclass(frozen=True)
class Attribution:
    """For each output: how each token that was read counts for it (above 0) or against it."""

    method: Method
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
    trace: Trace,
    positions: int | Sequence[int] | None = None,
    output: int | None = None,
    row: int = 0,
    method: Method = "integrated",
    steps: int = 32,
) -> Attribution:
    """What each token's embedding adds to an output's log-odds.

    The output at a position is `output`, else its label, else the likeliest one. "gradient" is the
    gradient times the embedding, summed over D. "integrated" begins with the mean of the text's
    embeddings at every token and takes the gradient's mean over `steps` points on the way to its
    own: the scores of all tokens add up to what the words have changed. (From embeddings that are 0
    nothing would be learnt where a norm comes first, for it does away with their length.)
    """
    if "logits" not in trace:
        raise UserError("This model has no output; trace one that has a head.")
    if method not in ("integrated", "gradient") or steps < 1:
        raise UserError("attribution: method is 'integrated' or 'gradient', and steps at least 1.")
    if trace.edits and trace.reading.n_rows > 1:
        raise UserError("attribution: of a changed pass, trace one text at a time.")
    said = by_output(trace, trace.peek(["logits"])["logits"][row].float(), row)
    if output is not None and not 0 <= output < said.shape[1]:
        raise UserError(f"There is no output {output}: there are {said.shape[1]}, from 0 on.")
    places = _places(positions, len(said))
    chosen = [_choice(trace, place, said, output, row) for place in places]
    points = [(step + 0.5) / steps for step in range(steps)] if method == "integrated" else None
    sides = [key.partition(".")[0] for key in trace.keys("*.embedding")]
    tokens = {side: tuple(trace.tokens(side, row)) for side in sides}
    with torch.inference_mode(False), torch.enable_grad():
        total = {side: torch.zeros(len(places), len(tokens[side])) for side in sides}
        for some in _chunks(points, sum(map(len, tokens.values()))):
            for place, counted in enumerate(_counted(trace, row, some, places, chosen)):
                for side in sides:
                    total[side][place] += counted[side] / len(points or [1.0])
    names = tuple(output_names(trace, chosen, row))
    return Attribution(method, names, tuple(places), tokens, total)


def _chunks(points: Points, length: int) -> Iterator[Points]:
    """So many points at once that a pass stays small."""
    if points is None:
        yield None
        return
    size = max(1, AT_ONCE // max(1, length))
    for start in range(0, len(points), size):
        yield points[start : start + size]


def _counted(
    trace: Trace, row: int, points: Points, places: list[int], chosen: list[int]
) -> Iterator[dict[str, Tensor]]:
    """For each output, gradient × way of each side's tokens, summed over the points."""
    ways: dict[str, Tensor] = {}
    leaves: dict[str, Tensor] = {}
    logits = _logits(trace, row, points, ways, leaves)
    outputs = torch.stack([by_output(trace, one.float(), row) for one in logits])  # (points, N, V)
    for place, id in zip(places, chosen, strict=True):
        goal = _goal(trace, outputs[:, place], id).sum()
        gradients = torch.autograd.grad(
            goal, list(leaves.values()), retain_graph=True, allow_unused=True
        )
        yield {
            side: torch.zeros(ways[side].shape[1])
            if gradient is None
            else (gradient * ways[side]).sum(dim=(0, 2)).float().cpu()
            for side, gradient in zip(leaves, gradients, strict=True)
        }


def _logits(
    trace: Trace, row: int, points: Points, ways: dict[str, Tensor], leaves: dict[str, Tensor]
) -> Tensor:
    """A pass that gradients can be taken of, one row a point on the way to the embeddings.

    `ways` tells how far the way is: from the mean of the text, or from 0 where there is no way.
    """

    def leaf(side: str) -> Edit:
        def become(value: Tensor) -> Tensor:
            value = value.detach()
            share = torch.tensor(points or [1.0]).to(value)[:, None, None]
            start = value.mean(dim=1, keepdim=True) if points else torch.zeros_like(value)
            ways[side] = value - start
            leaves[side] = (start + share * ways[side]).requires_grad_()
            return leaves[side]

        return Edit(f"{side}.embedding", become)

    sides = [key.partition(".")[0] for key in trace.keys("*.embedding")]
    probe = Probe([Ask("logits")], [*trace.edits, *map(leaf, sides)])
    run(trace.model, repeated(trace.reading, row, len(points or [1.0])), probe)
    return probe.found[Ask("logits")]


def _places(positions: int | Sequence[int] | None, count: int) -> list[int]:
    if isinstance(positions, int):
        positions = [positions]
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
        return logits[:, id]
    others = torch.arange(logits.shape[1], device=logits.device) != id
    return logits[:, id] - logits[:, others].logsumexp(dim=1)
