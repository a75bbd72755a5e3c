"""Attribution: how much each token adds to an output, by removing it or by gradients.

All methods follow everything that the model does with a token, values and feed-forward layers
included. Removal runs the model once without each token. Gradient × input extrapolates from a small
change of a token's vector, which norms mostly undo, so it often misses what removing the token
does. Integrated gradients (Sundararajan et al. 2017) average the gradient on the way from a text
whose tokens are all alike to the text itself; with too few points on a crooked way, their sum
misses the change that it should add up to, and the gap is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from qkv.inspect.draw.heat_map import HeatMap, clipping_note, draw_panel, robust_limit, turn_labels
from qkv.inspect.draw.labels import visible, wrapped
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.page import piece
from qkv.inspect.draw.style import DIVERGING, array, caption, new_figure
from qkv.inspect.trace.edit import Edit
from qkv.inspect.trace.hooks import run
from qkv.inspect.trace.outputs import by_position, label_name, row_labels
from qkv.inspect.trace.taps import Ask, Probe
from qkv.inspect.trace.trace import Trace
from qkv.model.quantized import QuantizedLinear

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Method = Literal["removal", "integrated", "gradient"]
METHODS = {
    "removal": "removing it",
    "integrated": "integrated gradients",
    "gradient": "gradient × input",
}
Scores = dict[str, Tensor]
Change = Callable[[Tensor], Tensor]
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

    The output at a position is `output`, else its label, else the likeliest one. Integrated
    gradients start at the mean of the text's embeddings (a start at 0 would be useless before a
    norm, which removes the length of a vector) and go through `steps` points; without `steps`,
    points are doubled until `gap` is small, or they are MAX_STEPS. By default it is removal where
    that is affordable.
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
    sides = [key.partition(".")[0] for key in trace.names("*.embedding")]
    tokens = {side: tuple(trace.tokens(side, row)) for side in sides}
    explained = _Explained(trace, row, tokens, chosen, ids)
    method = method or ("integrated" if steps else _affordable(trace, explained.n_tokens))
    gap = None
    if method == "removal":
        total = explained.by_removal()
    elif method == "gradient":
        total = explained.by_gradients([1.0], from_mean=False)
    else:
        total, gap = explained.by_integration(steps)
    pairs = zip(chosen, ids, strict=True)
    names = tuple(label_name(trace, id, row, position) for position, id in pairs)
    return Attribution(method, names, tuple(chosen), tokens, total, gap)


def _affordable(trace: Trace, n_tokens: int) -> Method:
    """Removal, unless a pass for each token is too much."""
    return "removal" if n_tokens**2 * _n_weights(trace) <= MAX_WORK else "integrated"


def _n_weights(trace: Trace) -> int:
    """Number of weights that a token is multiplied with, quantised ones too."""
    quantized = [x for x in trace.model.modules() if isinstance(x, QuantizedLinear)]
    stored = sum(layer.in_features * layer.out_features for layer in quantized)
    return stored + sum(weight.numel() for weight in trace.model.parameters())


def _check_positions(positions: int | Sequence[int] | None, count: int) -> list[int]:
    if positions is None:
        return list(range(count))
    positions = [positions] if isinstance(positions, int) else list(positions)
    for position in positions:
        if not -count <= position < count:
            raise UserError(f"There is no output {position}; this trace has {count}, from 0 on.")
    return [position % count for position in positions]


@dataclass(frozen=True)
class _Explained:
    """Outputs of one row, by position and id, and the tokens that count for or against them."""

    trace: Trace
    row: int
    tokens: dict[str, tuple[str, ...]]
    positions: list[int]
    ids: list[int]

    @property
    def n_tokens(self) -> int:
        """Number of tokens on both sides."""
        return sum(map(len, self.tokens.values()))

    @property
    def n_at_once(self) -> int:
        """Number of changed texts that go through the model together."""
        return max(1, MAX_TOKENS_IN_PASS // max(1, self.n_tokens))

    def zeros(self) -> Scores:
        """Scores to add to, (outputs, tokens) of each side."""
        n_outputs = len(self.positions)
        return {side: torch.zeros(n_outputs, len(names)) for side, names in self.tokens.items()}

    def logits(self, n_rows: int, changes: dict[str, Change]) -> Tensor:
        """Logits of copies of the row, with each side's embedding changed."""
        edits = [Edit(f"{side}.embedding", change) for side, change in changes.items()]
        probe = Probe([Ask("logits")], [*self.trace.edits, *edits])
        run(self.trace.model, self.trace.inputs.repeat_row(self.row, n_rows), probe)
        return probe.values[Ask("logits")]

    def log_odds(self, logits: Tensor) -> Iterator[Tensor]:
        """Yield the log-odds of each output, (rows,), since log P is flat where P is almost 1."""
        every = torch.stack([by_position(self.trace, x.float(), self.row) for x in logits])
        for position, id in zip(self.positions, self.ids, strict=True):
            choices = every[:, position]  # (rows, V)
            if self.trace.inputs.output_kind in ("number", "classes"):
                yield choices[:, id]
            else:
                others = torch.arange(choices.shape[1], device=choices.device) != id
                yield choices[:, id] - choices[:, others].logsumexp(dim=1)

    @torch.no_grad()
    def by_removal(self) -> Scores:
        """What outputs lose when a token's embedding becomes the mean of the text's."""
        total = self.zeros()
        for side, names in self.tokens.items():
            for removed in torch.arange(len(names)).split(self.n_at_once):

                def without(value: Tensor, removed: Tensor = removed) -> Tensor:
                    value, mean = value.clone(), value[0].mean(dim=0)
                    value[torch.arange(1, len(value)), removed] = mean  # the first row is whole
                    return value

                logits = self.logits(len(removed) + 1, {side: without})
                changed = torch.stack([*self.log_odds(logits)])  # (outputs, rows)
                total[side][:, removed] = (changed[:, :1] - changed[:, 1:]).float().cpu()
        return total

    def by_integration(self, steps: int | None) -> tuple[Scores, float]:
        """Integrated gradients, and their gap.

        Without `steps`, with as many points as it needs, unless that would take too long.
        """
        with torch.no_grad():
            logits, *_ = self.between(torch.tensor([0.0, 1.0]))
            start, end = torch.stack([*self.log_odds(logits)], dim=1)
        change = (end - start).cpu()
        count = steps or STEPS
        # A point is a pass forwards, and for each output one of twice the work backwards.
        work = self.n_tokens * _n_weights(self.trace) * (1 + 2 * len(self.positions))
        while True:
            total = self.by_gradients([(step + 0.5) / count for step in range(count)])
            sums = torch.stack([scores.sum(dim=1) for scores in total.values()]).sum(dim=0)
            gap = float(((sums - change).abs() / change.abs().clamp(min=1.0)).max())
            count *= 2
            if steps or gap <= SMALL_GAP or count > MAX_STEPS or count * work > MAX_WORK:
                return total, gap

    def by_gradients(self, points: list[float], from_mean: bool = True) -> Scores:
        """Gradient × difference from the start, averaged over points on the way to the text."""
        with torch.inference_mode(False), torch.enable_grad():
            total = self.zeros()
            for some in torch.tensor(points).split(self.n_at_once):
                logits, leaves, differences = self.between(some, from_mean)
                for number, odds in enumerate(self.log_odds(logits)):
                    gradients = torch.autograd.grad(
                        odds.sum(), list(leaves.values()), retain_graph=True, allow_unused=True
                    )
                    for side, gradient in zip(leaves, gradients, strict=True):
                        if gradient is not None:
                            scores = (gradient * differences[side]).sum(dim=(0, 2))
                            total[side][number] += scores.float().cpu() / len(points)
        return total

    def between(self, points: Tensor, from_mean: bool = True) -> tuple[Tensor, Scores, Scores]:
        """Run a row for each point between a start (0) and the text (1), and keep the graph.

        The start is the mean of the text's embeddings at every token, or 0. Returns the logits, the
        embeddings at the points, and the text's own minus the start.
        """
        leaves: Scores = {}
        differences: Scores = {}

        def leaf(side: str) -> Change:
            def change(value: Tensor) -> Tensor:
                value = value.detach()
                start = value.mean(dim=1, keepdim=True) if from_mean else torch.zeros_like(value)
                differences[side] = value - start
                share = points.to(value)[:, None, None]
                leaves[side] = (start + share * differences[side]).requires_grad_()
                return leaves[side]

            return change

        logits = self.logits(len(points), {side: leaf(side) for side in self.tokens})
        return logits, leaves, differences


def _answer(question: Question) -> Attribution:
    """Explain all outputs, or the last ones if that would take too long."""
    trace = the_trace(question)
    shape = trace.shape("logits")
    count = shape[1] if len(shape) == 3 and trace.inputs.output_kind != "span" else 1
    n_tokens = sum(map(len, question.tokens.values()))
    method, most = _affordable(trace, n_tokens), MAX_OUTPUTS
    if method == "integrated":
        work = 3 * STEPS * n_tokens * _n_weights(trace)
        most = max(1, min(MAX_OUTPUTS, MAX_WORK // work))
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
