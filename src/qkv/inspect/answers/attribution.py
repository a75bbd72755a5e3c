"""Attribution: how much each token adds to an output, by removing it or by gradients.

All methods follow everything that the model does with a token, values and feed-forward layers
included. Removal runs the model once without each token. Gradient × input extrapolates from a small
change of a token's vector, which norms mostly undo, so it often misses what removing the token
does. Integrated gradients (Sundararajan et al. 2017) average the gradient on the way from a text
whose tokens are all alike to the text itself; with too few points on a crooked way, their sum
misses the change that it should add up to, and the gap is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from markupsafe import Markup
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from qkv.data import IGNORE
from qkv.errors import UserError
from qkv.inspect.answers.answer import MapAnswer, Question, View, the_trace
from qkv.inspect.answers.steps import MAX_DRAWN, last_drawn
from qkv.inspect.draw import (
    DIVERGING,
    HeatMap,
    array,
    caption,
    clipping_note,
    localized,
    new_figure,
    piece,
    robust_limit,
    visible,
)
from qkv.inspect.draw.heat_map import draw_panel, turn_labels
from qkv.inspect.draw.labels import wrapped
from qkv.inspect.trace.edit import Edit
from qkv.inspect.trace.outputs import by_position, label_name, row_labels
from qkv.inspect.trace.probe import Ask, Probe, run
from qkv.model.quantized import QuantizedLinear

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.trace.trace import Trace

Method = Literal["removal", "integrated", "gradient"]
METHODS = {
    "removal": "removing it",
    "integrated": "integrated gradients",
    "gradient": "gradient × input",
}
Scores = dict[str, Tensor]
Tokens = dict[str, tuple[str, ...]]
Points = list[float] | None  # on the way to the text, 0 … 1; None: at its end alone
MAX_TOKENS_IN_PASS = 2048  # of a pass that keeps what gradients need
STEPS, MAX_STEPS = 32, 256  # points on the way, doubled until the gap is small enough
SMALL_GAP = 0.05  # of the change that scores should add up to
MAX_OUTPUTS = 32  # explained by the view; each costs STEPS backward passes,
MAX_WORK = 6 * 10**12  # and tokens × weights of all passes may not be more


@dataclass(frozen=True)
class Attribution(MapAnswer):
    """For each output: how much each token counts for it (above 0) or against it."""

    method: Method
    outputs: tuple[str, ...]
    positions: tuple[int, ...]
    tokens: dict[str, tuple[str, ...]]  # that were read, by side
    scores: dict[str, Tensor]  # (outputs, tokens) of each side
    gap: float | None = None
    """Integrated: by how much the worst output's scores miss the change that they should add up to,
    as a share of that change (of 1, where it is smaller)."""

    @property
    def converged(self) -> str:
        """A sentence about the gap, which says so where the scores do not add up."""
        if self.gap is None:
            return ""
        said = "Scores add up to the change within {percent:.1f} %."
        if self.gap > SMALL_GAP:
            said = (
                "Not converged: scores miss the change by up to {percent:.0f} %, so do not read "
                "them as shares of it; removal is exact."
            )
        return localized(said, percent=100 * self.gap)

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield the maps, and how well integrated gradients add up."""
        yield from super().text(width)
        if self.converged:
            yield Text(wrapped(self.converged, width))

    def html(self) -> Markup:
        """Return the maps, and how well integrated gradients add up."""
        note = piece("note", self.converged) if self.converged else Markup()
        return super().html() + note

    def visible_to(self, side: str) -> Tensor:
        """Which tokens each output can see, (outputs, tokens): of its own side no later ones."""
        tokens = torch.arange(len(self.tokens[side]))
        if side != "target":
            return torch.ones(len(self.outputs), len(tokens), dtype=torch.bool)
        return tokens <= torch.tensor(self.positions)[:, None]

    def parts(self) -> list[HeatMap]:
        """A map per side: outputs down, tokens across."""
        return [
            HeatMap(
                scores,
                self.outputs,
                self.tokens[side],
                localized("outputs down, {side} tokens across", side=localized(side)),
                allowed=self.visible_to(side),
                value="for (above 0) or against it",
                down="output",
                across="token",
            )
            for side, scores in self.scores.items()
        ]

    def figure(self) -> Figure:
        """Draw one panel per side: outputs down, tokens across."""
        outputs = [visible(output) for output in self.outputs[-MAX_DRAWN:]]
        every_score = array(torch.cat([x[-MAX_DRAWN:] for x in self.scores.values()], dim=1))
        limit = robust_limit(every_score)
        count = sum(map(len, self.tokens.values()))
        every = max(1, count // 80)  # labels that fit
        scale: dict[str, Any] = {"cmap": DIVERGING, "vmin": -limit, "vmax": limit}
        figure, (panels,) = new_figure(
            max(4.5, 0.42 * min(count, 80) + 2.5),
            max(2.6, 0.34 * len(outputs) + 1.6),
            ncols=len(self.scores),
            squeeze=False,
            width_ratios=[len(tokens) for tokens in self.tokens.values()],
        )
        for axes, (side, scores) in zip(panels, self.scores.items(), strict=True):
            shut = ~self.visible_to(side)[-MAX_DRAWN:].numpy()
            image = draw_panel(axes, array(scores[-MAX_DRAWN:]), shut, scale)
            tokens = [visible(token) for token in self.tokens[side]][::every]
            places = range(0, len(self.tokens[side]), every)
            axes.set_xticks(places, tokens, parse_math=False)
            turn_labels(axes.xaxis)
            axes.set_yticks(range(len(outputs)), outputs, parse_math=False)
            axes.set_title(localized(f"{side} tokens"))
        panels[0].set_ylabel(localized("output"))
        label = localized("for (above 0) or against it")
        figure.colorbar(image, ax=panels.tolist(), label=label)
        title = "How much each token adds to each output, by {method}"
        title = localized(title, method=localized(METHODS[self.method]))
        left_out = last_drawn(len(self.outputs), MAX_DRAWN, "outputs")
        beyond = clipping_note(every_score, limit)
        hatched = "Hatched: a later token, which the output cannot see."
        hatched = localized(hatched) if "target" in self.tokens else ""
        caption(figure, title, hatched, left_out, self.converged, beyond)
        return figure


def attribution(
    trace: Trace,
    positions: int | Sequence[int] | None = None,
    output: int | None = None,
    row: int = 0,
    method: Method | None = None,
    steps: int | None = None,
) -> Attribution:
    """Compute what each token's embedding adds to an output's log-odds.

    The output at a position is `output`, else its label, else the likeliest one. "removal" is what
    the output loses when the token's embedding becomes the mean of the text's. "gradient" is the
    gradient times the embedding, summed over D. "integrated" starts with that mean at every token
    and averages the gradient over `steps` points on the way to the text's own, so that the scores
    of all tokens add up to the difference between the two, up to `gap`; without `steps`, points are
    doubled until that is small, or they are MAX_STEPS. (A start at 0 would be useless before a
    norm, which removes the length of a vector.) By default it is removal where that is affordable.
    """
    if "logits" not in trace:
        raise UserError("This model has no output; trace one that has a head.")
    if method not in (None, *METHODS) or (steps is not None and steps < 1):
        known = ", ".join(map(repr, METHODS))
        raise UserError(f"attribution: method is one of {known}, and steps at least 1.")
    if trace.edits and trace.inputs.n_rows > 1:
        raise UserError("attribution: a changed pass has several texts; trace one at a time.")
    logits = by_position(trace, trace.peek(["logits"])["logits"][row].float(), row)
    if output is not None and not 0 <= output < logits.shape[1]:
        raise UserError(f"There is no output {output}; there are {logits.shape[1]}, from 0 on.")
    chosen = _check_positions(positions, len(logits))
    labels = row_labels(trace, row, len(logits))
    best = [int(logits[at].argmax()) if labels[at] == IGNORE else labels[at] for at in chosen]
    ids = best if output is None else [output] * len(chosen)
    tokens = {side: tuple(trace.tokens(side, row)) for side in _sides(trace)}
    method = method or ("integrated" if steps else _affordable(trace, tokens))
    gap = None
    if method == "removal":
        total = _removal(trace, row, tokens, chosen, ids)
    elif method == "gradient":
        total = _by_gradients(trace, row, tokens, chosen, ids, None)
    else:
        total, gap = _integrated(trace, row, tokens, chosen, ids, steps)
    pairs = zip(chosen, ids, strict=True)
    names = tuple(label_name(trace, id, row, position) for position, id in pairs)
    return Attribution(method, names, tuple(chosen), tokens, total, gap)


def _sides(trace: Trace) -> list[str]:
    return [key.partition(".")[0] for key in trace.names("*.embedding")]


def _affordable(trace: Trace, tokens: Tokens) -> Method:
    """Removal, unless a pass for each token is too much."""
    n_tokens = sum(map(len, tokens.values()))
    return "removal" if n_tokens**2 * _n_weights(trace) <= MAX_WORK else "integrated"


def _n_weights(trace: Trace) -> int:
    """Number of weights that a token is multiplied with, quantised ones too."""
    quantized = [x for x in trace.model.modules() if isinstance(x, QuantizedLinear)]
    stored = sum(layer.in_features * layer.out_features for layer in quantized)
    return stored + sum(weight.numel() for weight in trace.model.parameters())


def _removal(
    trace: Trace, row: int, tokens: Tokens, positions: list[int], ids: list[int]
) -> Scores:
    """What outputs lose when a token's embedding becomes the mean of the text's."""
    total = {side: torch.zeros(len(positions), len(tokens[side])) for side in tokens}
    size = max(1, MAX_TOKENS_IN_PASS // max(1, sum(map(len, tokens.values()))))
    for side in tokens:
        for start in range(0, len(tokens[side]), size):
            removed = list(range(start, min(start + size, len(tokens[side]))))
            changed = _log_odds_with(trace, row, len(removed) + 1, {side: removed}, positions, ids)
            total[side][:, removed] = (changed[:1] - changed[1:]).T.float().cpu()
    return total


@torch.no_grad()
def _log_odds_with(
    trace: Trace,
    row: int,
    n_rows: int,
    removed: dict[str, list[int]],
    positions: list[int],
    ids: list[int],
) -> Tensor:
    """Log-odds of outputs, (rows, outputs): the first row is the text, the others lack a token."""

    def without(side: str, places: list[int]) -> Edit:
        def change(value: Tensor) -> Tensor:
            value = value.clone()
            mean = value[0].mean(dim=0)
            for number, place in enumerate(places, 1):
                value[number, place] = mean
            return value

        return Edit(f"{side}.embedding", change)

    edits = [without(side, places) for side, places in removed.items()]
    probe = Probe([Ask("logits")], [*trace.edits, *edits])
    run(trace.model, trace.inputs.repeat_row(row, n_rows), probe)
    return _log_odds_at(trace, row, probe.values[Ask("logits")], positions, ids)


def _log_odds_at(
    trace: Trace, row: int, logits: Tensor, positions: list[int], ids: list[int]
) -> Tensor:
    """Log-odds of outputs at positions, (rows, outputs)."""
    outputs = torch.stack([by_position(trace, x.float(), row) for x in logits])  # (rows, N, V)
    pairs = zip(positions, ids, strict=True)
    return torch.stack([_log_odds(trace, outputs[:, at], id) for at, id in pairs], dim=1)


def _integrated(
    trace: Trace,
    row: int,
    tokens: Tokens,
    positions: list[int],
    ids: list[int],
    steps: int | None,
) -> tuple[Scores, float]:
    """Integrated gradients, and their gap.

    Without `steps`, with as many points as it needs, unless that would take too long.
    """
    with torch.no_grad():
        start, end = _log_odds_at(
            trace, row, _logits(trace, row, [0.0, 1.0], {}, {}).detach(), positions, ids
        )
    change = (end - start).cpu()
    count = steps or STEPS
    # A point is a pass forwards, and for each output one of twice the work backwards.
    work = sum(map(len, tokens.values())) * _n_weights(trace) * (1 + 2 * len(positions))
    while True:
        points = [(step + 0.5) / count for step in range(count)]
        total = _by_gradients(trace, row, tokens, positions, ids, points)
        sums = torch.stack([scores.sum(dim=1) for scores in total.values()]).sum(dim=0)
        gap = float(((sums - change).abs() / change.abs().clamp(min=1.0)).max())
        count *= 2
        if steps or gap <= SMALL_GAP or count > MAX_STEPS or count * work > MAX_WORK:
            return total, gap


def _by_gradients(
    trace: Trace, row: int, tokens: Tokens, positions: list[int], ids: list[int], points: Points
) -> Scores:
    """Gradient × difference, averaged over the points."""
    with torch.inference_mode(False), torch.enable_grad():
        total = {side: torch.zeros(len(positions), len(tokens[side])) for side in tokens}
        for chunk in _chunks(points, sum(map(len, tokens.values()))):
            for number, scores in enumerate(_scores(trace, row, chunk, positions, ids)):
                for side in tokens:
                    total[side][number] += scores[side] / len(points or [1.0])
    return total


def _check_positions(positions: int | Sequence[int] | None, count: int) -> list[int]:
    if positions is None:
        return list(range(count))
    positions = [positions] if isinstance(positions, int) else list(positions)
    for position in positions:
        if not -count <= position < count:
            raise UserError(f"There is no output {position}; this trace has {count}, from 0 on.")
    return [position % count for position in positions]


def _chunks(points: Points, length: int) -> Iterator[Points]:
    """Split the points so that a pass stays small."""
    if points is None:
        yield None
        return
    size = max(1, MAX_TOKENS_IN_PASS // max(1, length))
    for start in range(0, len(points), size):
        yield points[start : start + size]


def _scores(
    trace: Trace, row: int, points: Points, positions: list[int], ids: list[int]
) -> Iterator[dict[str, Tensor]]:
    """For each output, gradient × difference of each side's tokens, summed over the points."""
    differences: dict[str, Tensor] = {}
    leaves: dict[str, Tensor] = {}
    logits = _logits(trace, row, points, differences, leaves)
    outputs = torch.stack([by_position(trace, x.float(), row) for x in logits])  # (points, N, V)
    for position, id in zip(positions, ids, strict=True):
        gradients = torch.autograd.grad(
            _log_odds(trace, outputs[:, position], id).sum(),
            list(leaves.values()),
            retain_graph=True,
            allow_unused=True,
        )
        yield {
            side: torch.zeros(differences[side].shape[1])
            if gradient is None
            else (gradient * differences[side]).sum(dim=(0, 2)).float().cpu()
            for side, gradient in zip(leaves, gradients, strict=True)
        }


def _logits(
    trace: Trace,
    row: int,
    points: Points,
    differences: dict[str, Tensor],
    leaves: dict[str, Tensor],
) -> Tensor:
    """Run a pass with one row per point, and keep its graph.

    `differences` gets the embeddings minus their start (the text's mean, or 0 without points), and
    `leaves` the embeddings at the points.
    """

    def leaf(side: str) -> Edit:
        def change(value: Tensor) -> Tensor:
            value = value.detach()
            share = torch.tensor(points or [1.0]).to(value)[:, None, None]
            start = value.mean(dim=1, keepdim=True) if points else torch.zeros_like(value)
            differences[side] = value - start
            leaves[side] = (start + share * differences[side]).requires_grad_()
            return leaves[side]

        return Edit(f"{side}.embedding", change)

    sides = [key.partition(".")[0] for key in trace.names("*.embedding")]
    probe = Probe([Ask("logits")], [*trace.edits, *map(leaf, sides)])
    run(trace.model, trace.inputs.repeat_row(row, len(points or [1.0])), probe)
    return probe.values[Ask("logits")]


def _log_odds(trace: Trace, logits: Tensor, id: int) -> Tensor:
    """Log-odds of an output, since log P is flat where P is almost 1."""
    if trace.inputs.output_kind in ("number", "classes"):
        return logits[:, id]
    others = torch.arange(logits.shape[1], device=logits.device) != id
    return logits[:, id] - logits[:, others].logsumexp(dim=1)


def _answer(question: Question) -> Attribution:
    """Explain all outputs, or the last ones if that would take too long."""
    trace = the_trace(question)
    shape = trace.shape("logits")
    count = shape[1] if len(shape) == 3 and trace.inputs.output_kind != "span" else 1
    tokens = {side: tuple(names) for side, names in question.tokens.items()}
    work = sum(map(len, tokens.values())) * _n_weights(trace)
    method, most = _affordable(trace, tokens), MAX_OUTPUTS
    if method == "integrated":
        most = max(1, min(MAX_OUTPUTS, MAX_WORK // (3 * STEPS * work)))
    if count > most:
        remark = "attribution: of the last {shown} of {count:,} outputs"
        question.remark(localized(remark, shown=most, count=count))
    positions = range(count - most, count) if count > most else None
    return trace.attribution(positions, method=method)


def _lack(question: Question) -> str | None:
    trace = the_trace(question)
    if trace.edits and trace.inputs.n_rows > 1:
        return "Attribution of a changed pass explains one text at a time; give one --source."
    if "logits" in trace:
        return None
    return "This model gives vectors and no output to explain; look at its attention instead."


VIEW = View(
    "Attribution",
    "How much each token adds to the log-odds of each output: above 0 for it, below 0 against it. "
    "Where it is affordable, this is what the output loses without the token (its vector becomes "
    "the mean of all), else integrated gradients. More reliable than rollout.",
    _answer,
    _lack,
)
