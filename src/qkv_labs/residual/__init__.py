"""Lab 7: what residual connections do for deep stacks, and whether the output stays the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import Encoder, Residual
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, look, new_figure, ticks
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, Words
from qkv_labs.texts import Texts

say = Texts("residual")

N_WORDS, D_MODEL, LENGTH = 12, 32, 8
KINDS = ("post", "pre", "without")
BARE = "bare"  # without a norm too; of untrained stacks only
NAMES = {
    "post": "residual, post-norm",
    "pre": "residual, pre-norm",
    "without": "no residual",
    BARE: "no residual, no norm",
}
DEPTHS = (2, 4, 8, 16, 32)  # of untrained stacks
TAUGHT = (1, 4, 12)  # of trained stacks
RATES = (2e-3, 6e-3)
FADED = 0.1  # a gradient below this share of the residual stacks' has vanished
KEPT = 0.5  # a cosine above this: the output is still the input
ALIKE = 0.2  # by so much more cosine than with residual connections tokens have become alike


class Rewritten(Residual):
    """norm(f(x)): a post-norm sublayer without its residual connection."""

    def forward(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], read: Tensor | None = None
    ) -> Tensor:
        """Return the sublayer's output in place of its input."""
        return self.norm(self.dropout(sublayer(x)))


@dataclass(frozen=True)
class Fresh:
    """A kind of stack at initialisation, by depth."""

    kind: str
    first: list[float]  # norm of the first block's gradient, mean of seeds
    last: list[float]  # norm of the last block's
    alike: list[float]  # cosine of different tokens' vectors at the end: 1 when all are the same


@dataclass(frozen=True)
class Trained:
    """A kind of stack after training, by depth: accuracy by seed, and its learning rate."""

    kind: str
    accuracies: list[list[float]]
    rates: list[float]
    before: list[float]  # of the deepest: cosine of the stream to its input, layer by layer
    after: list[float]


@dataclass(frozen=True)
class Measured:
    """Stacks with residual connections, post- and pre-norm, and without."""

    fresh: list[Fresh]
    trained: list[Trained]
    guess: float  # accuracy of naming any word of the sequence


def build(kind: str, n_layers: int) -> Encoder:
    """Build a stack of this kind and depth; all have the same weights but a last norm."""
    position = "pre" if kind == "pre" else "post"
    settings: dict[str, Any] = {
        "positions": "rotary",
        "embedding_scale": False,
        "norm_position": position,
    }
    model = tools.encoder(
        N_WORDS, D_MODEL, n_layers, n_labels=N_WORDS, max_length=LENGTH, **settings
    )
    if kind in ("without", BARE):
        for module in model.modules():
            if isinstance(module, Residual):
                module.__class__ = Rewritten
                module.norm = nn.Identity() if kind == BARE else module.norm
    return model


def loss_of(model: Encoder) -> Tensor:
    """Cross-entropy on a new batch."""
    words, before = tools.word_before(32, LENGTH, N_WORDS)
    return tools.token_loss(model(words)[:, 1:], before)


@torch.no_grad()
def right(model: Encoder) -> float:
    """Return the share of right answers on new words."""
    words, before = tools.word_before(300, LENGTH, N_WORDS)
    return float((model(words)[:, 1:].argmax(dim=-1) == before).double().mean())


@torch.no_grad()
def stream(model: Encoder) -> list[Tensor]:
    """Return the residual stream of a batch: the first block's input, then each block's output."""
    states: list[Tensor] = []
    blocks = model.encoder.blocks
    hooks = [blocks[0].register_forward_pre_hook(lambda _, x: states.append(x[0]))]
    hooks += [block.register_forward_hook(lambda *x: states.append(x[2])) for block in blocks]
    model.hidden(tools.word_before(64, LENGTH, N_WORDS)[0])
    for hook in hooks:
        hook.remove()
    return states


def kept(states: list[Tensor]) -> list[float]:
    """Return the cosine of each state to the input, without what all tokens share."""
    centred = [state - state.mean(dim=(0, 1)) for state in states]
    return [float(F.cosine_similarity(x, centred[0], dim=-1).mean()) for x in centred]


def alike(state: Tensor) -> float:
    """Return the mean cosine of two tokens of a sequence, (B, T, D): 1 when all are the same."""
    unit = F.normalize(state, dim=-1)
    n = state.shape[1]
    cosines = unit @ unit.transpose(1, 2)
    return float((cosines.sum() / len(state) - n) / (n * (n - 1)))


def gradients(model: Encoder) -> tuple[float, float]:
    """Return the norms of the loss's gradient in the first block and in the last."""
    model.zero_grad()
    loss_of(model).backward()
    norms = [
        float(torch.stack([x.grad.norm() for x in block.parameters() if x.grad is not None]).norm())
        for block in model.encoder.blocks
    ]
    return norms[0], norms[-1]


def measure_fresh(kind: str, seed: int) -> Fresh:
    """Measure gradients and likeness at initialisation, mean of three draws."""
    fresh = Fresh(kind, [], [], [])
    for depth in DEPTHS:
        torch.manual_seed(seed)
        models = [build(kind, depth) for _ in range(3)]
        norms = [gradients(model) for model in models]
        fresh.first.append(fmean(first for first, _ in norms))
        fresh.last.append(fmean(last for _, last in norms))
        fresh.alike.append(fmean(alike(stream(model)[-1]) for model in models))
    return fresh


def train(kind: str, depth: int, seed: int, rate: float, steps: int) -> tuple[float, Encoder]:
    """Train a stack, and return its accuracy and the stack."""
    torch.manual_seed(seed)
    model = build(kind, depth)
    tools.fit(model, lambda step: loss_of(model), steps, lr=rate)
    return right(model), model


def measure_trained(kind: str, settings: Settings) -> Trained:
    """Train each depth with the better of the learning rates, chosen on the first seed."""
    steps, seeds = settings.pick(150, 400), settings.seeds(3, 5)
    accuracies, rates = [], []
    for depth in TAUGHT:
        settings.tell(f"training: {kind}, {depth} layers")

        def run(rate: float, seed: int, depth: int = depth) -> tuple[float, Encoder]:
            return train(kind, depth, seed, rate, steps)

        rate, runs = tools.at_best_rate(run, RATES, seeds, itemgetter(0))
        accuracies.append([accuracy for accuracy, _ in runs])
        rates.append(rate)
    torch.manual_seed(settings.seed)
    before = kept(stream(build(kind, TAUGHT[-1])))
    return Trained(kind, accuracies, rates, before, kept(stream(runs[0][1])))


def measure(settings: Settings) -> Measured:
    """Measure untrained stacks of all depths, then trained ones."""
    fresh = [measure_fresh(kind, settings.seed) for kind in (*KINDS, BARE)]
    trained = [measure_trained(kind, settings) for kind in KINDS]
    torch.manual_seed(settings.seed)
    words, before = tools.word_before(1000, LENGTH, N_WORDS)
    guess = (words[:, None, :] == before[:, :, None]).double().mean()
    return Measured(fresh, trained, float(guess))


def tables(m: Measured) -> list[Table]:
    """Gradients of untrained stacks, accuracy of trained ones, and what is left of the input."""
    shallow, deep, layers = DEPTHS[0], DEPTHS[2], TAUGHT[-1]
    looks = (0, layers // 4, layers // 2, layers)
    fresh = [
        (
            NAMES[stack.kind],
            *(f"{norm:.2g}" for norm in stack.first),
            *(f"{stack.alike[i]:.2f}" for i in (0, 2)),
        )
        for stack in m.fresh
    ]
    learnt = [(NAMES[arm.kind], *map(tools.percent, arm.accuracies)) for arm in m.trained]
    left = [
        (NAMES[arm.kind], when, *(f"{cosines[i]:.2f}" for i in looks))
        for arm in m.trained
        for when, cosines in (("fresh", arm.before), ("trained", arm.after))
    ]
    taught_head = (f"depth {n}" for n in TAUGHT)
    fresh_head = (*(f"depth {n}" for n in DEPTHS), f"alike, {shallow}", f"alike, {deep}")
    return [
        say.table("fresh", ("stack", *fresh_head), fresh, shallow=shallow, deep=deep),
        say.table("learnt", ("stack", *taught_head), learnt, guess=100 * m.guess),
        say.table("left", ("stack", "when", *(f"after {i}" for i in looks)), left, layers=layers),
    ]


def draw(m: Measured) -> Figure:
    """The gradient that arrives below, what depth costs, and what is left of the input."""
    figure, (gradient, accuracy, cosine) = new_figure(11.5, 3.6, nrows=1, ncols=3)
    styles = {kind: look(i) for i, kind in enumerate(NAMES)}
    for fresh in m.fresh:
        gradient.plot(DEPTHS, fresh.first, label=NAMES[fresh.kind], **styles[fresh.kind])
    for arm in m.trained:
        style, label = styles[arm.kind], NAMES[arm.kind]
        means = [100 * fmean(seeds) for seeds in arm.accuracies]
        accuracy.plot(TAUGHT, means, label=label, **style)
        for depth, seeds in zip(TAUGHT, arm.accuracies, strict=True):
            values = [100 * share for share in seeds]
            accuracy.plot([depth] * len(seeds), values, linestyle="", alpha=0.4, **style)
        cosine.plot(arm.before, linestyle=":", markerfacecolor="white", **style)
        cosine.plot(arm.after, label=label, **style)
    gradient.set(xscale="log", yscale="log", xlabel="layers")
    gradient.set(ylabel="norm of the first block's gradient")
    gradient.set_title("Fresh: the gradient that arrives")
    ticks(gradient, DEPTHS)
    gradient.legend(loc="lower left")
    accuracy.axhline(100 * m.guess, color=COLOURS[7], linestyle=":")
    accuracy.set(xlabel="layers", ylabel="right (%), line: mean of seeds")
    accuracy.set(ylim=(0, 104), xticks=TAUGHT, title="Trained: right answers (dotted: a guess)")
    cosine.axhline(0, color=COLOURS[7], linewidth=0.8)
    cosine.set(xlabel="layer", ylabel="cosine of the stream to its input")
    cosine.set_title("What is left of the input (dotted, hollow: fresh)")
    return figure


def judge(m: Measured) -> Verdict:
    """Deep down: are residual stacks ahead, do gradients vanish without, is the output new?"""
    post, pre, without, bare = NAMES.values()
    right = Figures({NAMES[x.kind]: Interval.percent(x.accuracies[-1], 100) for x in m.trained})
    ends = Figures({NAMES[arm.kind]: arm.after[-1] for arm in m.trained})
    gradients = Figures({NAMES[stack.kind]: stack.first[-1] for stack in m.fresh})
    likeness = Figures({NAMES[stack.kind]: stack.alike[0] for stack in m.fresh})
    least = FADED * min(stack.first[-1] for stack in m.fresh if stack.kind in ("post", "pre"))
    return say.verdict(
        {"layers": TAUGHT[-1], "depth": DEPTHS[-1], "alike_depth": DEPTHS[0], "kept": KEPT},
        deep=[right.compare(kind, ">", without) for kind in (post, pre)],
        gradient=gradients.compare(without, "<", least, form=".2g"),
        bare=gradients.compare(bare, "<", least, form=".2g"),
        alike=likeness.compare(without, ">", post, margin=ALIKE, form=".2f"),
        new=[ends.compare(kind, "<", KEPT, form=".2f") for kind in (post, pre)],
    )


TAUGHT_WORDS = Words.join(map(str, TAUGHT))
SIZES = {"shallowest": DEPTHS[0], "deepest": DEPTHS[-1], "taught": TAUGHT_WORDS, "width": D_MODEL}
LAB = say.make_lab(measure, tables, draw, judge, SIZES)
