"""Lab 8: what normalising does for training, and why over the token and not over the batch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import Encoder, Layout, Residual
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("norm")

N_WORDS, D_MODEL = 12, 32
SHALLOW, DEEP = 6, 24  # the claim: without norms, six layers hardly train
SHORTEST, LONGEST = 3, 10  # words; padding fills up
KINDS = ("no norm", "LayerNorm post", "LayerNorm pre", "RMSNorm pre", "BatchNorm pre")
RATES = {SHALLOW: (1e-2, 1e-1), DEEP: (3e-3, 1e-2)}
HIGH = max(RATES[SHALLOW])
STEPS = {SHALLOW: 80, DEEP: 60}
BATCHES = (32, 2)
SAME, SEEN = 1e-9, 1e-3  # a change below is rounding in float64; one above is not
POST = KINDS[1]


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm in place of LayerNorm: each feature over all tokens, padding too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, T, D)."""
        return super().forward(x.flatten(0, 1)).view_as(x)


@dataclass(frozen=True)
class Trained:
    """A norm's accuracy at a depth, by learning rate and seed."""

    kind: str
    n_layers: int
    accuracies: dict[str, list[float]]


@dataclass(frozen=True)
class Change:
    """How much a sentence's vectors change with the rest of the batch, share of their length."""

    kind: str
    training: bool  # whether the model is in training or in use
    mates: float  # other sentences in the batch
    padding: float  # as many columns of padding again


@dataclass(frozen=True)
class Gap:
    """Accuracy of a model trained with this batch size: as in training, and as in use."""

    kind: str
    batch: int
    training: list[float]
    use: list[float]


@dataclass(frozen=True)
class Measured:
    """Training, what the rest of a batch changes, and small batches."""

    trained: list[Trained]
    changes: list[Change]
    gaps: list[Gap]


def build(kind: str, n_layers: int = SHALLOW) -> Encoder:
    """Build a stack with this norm everywhere; nothing else differs."""
    name, _, position = kind.partition(" ")
    settings: dict[str, Any] = {
        "norm": "rms" if name == "RMSNorm" else "layer",
        "norm_position": "post" if position == "post" else "pre",
        "positions": "rotary",
        "embedding_scale": False,
    }
    model = tools.encoder(
        1 + N_WORDS, D_MODEL, n_layers, n_labels=1 + N_WORDS, max_length=2 * LONGEST, **settings
    )
    if name in ("no", "BatchNorm"):
        for module in model.modules():
            if isinstance(module, Residual):
                module.norm = nn.Identity() if name == "no" else BatchNorm(D_MODEL)
        if position != "post":
            model.encoder.norm = nn.Identity() if name == "no" else BatchNorm(D_MODEL)
    return model


def task(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw random words padded with 0, their lengths, and the word before each but the first."""
    lengths = torch.randint(SHORTEST, LONGEST + 1, (rows,))
    words = torch.randint(1, 1 + N_WORDS, (rows, LONGEST))
    words = words * (torch.arange(LONGEST) < lengths[:, None])
    before = words[:, :-1].masked_fill(words[:, 1:] == 0, tools.IGNORE)
    return words, lengths, before


def train(
    kind: str, rate: float, seed: int, steps: int, rows: int = BATCHES[0], n_layers: int = SHALLOW
) -> Encoder:
    """Train a new model to name the word before."""
    torch.manual_seed(seed)
    model = build(kind, n_layers)

    def loss(step: int) -> Tensor:
        words, lengths, before = task(rows)
        return tools.token_loss(model(words, Layout(lengths))[:, 1:], before)

    tools.fit(model, loss, steps, lr=rate)
    return model


@torch.no_grad()
def right(model: Encoder, rows: int, training: bool) -> float:
    """Return the accuracy on new words in batches of this size, in training mode or in use."""
    model = deepcopy(model).train(training)  # training moves a BatchNorm's running figures
    torch.manual_seed(1)
    n_right = n_asked = 0
    for _ in range(512 // rows):
        words, lengths, before = task(rows)
        asked = before != tools.IGNORE
        guesses = model(words, Layout(lengths))[:, 1:].argmax(dim=-1)
        n_right += int((guesses == before)[asked].sum())
        n_asked += int(asked.sum())
    return n_right / n_asked


@torch.no_grad()
def change(model: Encoder, training: bool) -> tuple[float, float]:
    """Return what another batch, and more padding, change in the vectors of one sentence."""
    torch.manual_seed(2)
    words, lengths, _ = task(8)
    other_words, other_lengths, _ = task(8)
    other_words[0], other_lengths[0] = words[0], lengths[0]

    def vectors(words: Tensor, lengths: Tensor) -> Tensor:
        fresh = deepcopy(model).double().train(training)
        return fresh.hidden(words, Layout(lengths))[0, : int(lengths[0])]

    alone = vectors(words, lengths)
    mates = vectors(other_words, other_lengths)
    padded = vectors(F.pad(words, (0, LONGEST)), lengths)
    moved = [float((changed - alone).norm() / alone.norm()) for changed in (mates, padded)]
    return moved[0], moved[1]


def measure_training(settings: Settings) -> tuple[list[Trained], dict[str, Encoder]]:
    """Train each norm at each rate, and deep stacks; return a trained model of each norm too."""
    seeds = settings.seeds(3, 5)
    trained: list[Trained] = []
    models: dict[str, Encoder] = {}
    deep = ("no norm", "LayerNorm pre")
    for n_layers, kinds, some in ((SHALLOW, KINDS, seeds), (DEEP, deep, seeds[:-1])):
        steps = STEPS[n_layers] * settings.pick(1, 3)
        for kind in kinds:
            settings.tell(f"training: {kind}, {n_layers} layers")
            accuracies: dict[str, list[float]] = {f"{rate:g}": [] for rate in RATES[n_layers]}
            for rate, seed in product(RATES[n_layers], some):
                model = train(kind, rate, seed, steps, n_layers=n_layers)
                accuracies[f"{rate:g}"].append(right(model, BATCHES[0], training=False))
                models.setdefault(kind, model)
            trained.append(Trained(kind, n_layers, accuracies))
    return trained, models


def measure_gap(kind: str, rows: int, settings: Settings) -> Gap:
    """Train with batches of this size; return accuracy as in training and as in use."""
    settings.tell(f"training: {kind}, batches of {rows}")
    steps = STEPS[SHALLOW] * settings.pick(2, 6) // (2 if rows == BATCHES[0] else 1)
    gap = Gap(kind, rows, [], [])
    for seed in settings.seeds(3, 5):
        model = train(kind, RATES[SHALLOW][0], seed, steps, rows)
        gap.training.append(right(model, rows, training=True))
        gap.use.append(right(model, rows, training=False))
    return gap


def measure(settings: Settings) -> Measured:
    """Train with each norm, measure what neighbours change, then make batches small."""
    trained, models = measure_training(settings)
    changes = [
        Change(kind, training, *change(model, training))
        for kind, model in models.items()
        for training in (True, False)
    ]
    gaps = [
        measure_gap(kind, rows, settings)
        for kind in ("LayerNorm pre", "BatchNorm pre")
        for rows in BATCHES
    ]
    return Measured(trained, changes, gaps)


def _rates(m: Measured) -> list[str]:
    return sorted({rate for arm in m.trained for rate in arm.accuracies}, key=float)


def tables(m: Measured) -> list[Table]:
    """Accuracy by rate, what neighbours change, and small batches."""

    def at(arm: Trained, rate: str) -> str:
        return tools.percent(arm.accuracies[rate]) if rate in arm.accuracies else "–"

    rates = _rates(m)
    learnt = [
        (arm.kind, str(arm.n_layers), *(at(arm, rate) for rate in rates)) for arm in m.trained
    ]
    changes = {
        "norm": "{0.kind}",
        "mode": lambda change: "training" if change.training else "use",
        "other batch-mates": lambda change: tools.tiny(change.mates),
        "more padding": lambda change: tools.tiny(change.padding),
    }
    modes = {
        "norm": "{0.kind}",
        "sentences a batch": "{0.batch}",
        "training": lambda gap: tools.percent(gap.training),
        "use": lambda gap: tools.percent(gap.use),
    }
    return [
        say.table("learnt", ("norm", "layers", *(f"rate {rate}" for rate in rates)), learnt),
        say.table("changes", changes, m.changes),
        say.table("modes", modes, m.gaps),
    ]


def draw(m: Measured) -> Figure:
    """Training by norm and rate, what neighbours change, and small batches."""
    figure, (learnt, neighbours, small) = new_figure(12.5, 3.8, nrows=1, ncols=3)
    for index, rate in enumerate(_rates(m)):
        rows = [(row, arm.accuracies.get(rate, [])) for row, arm in enumerate(m.trained)]
        x = [100 * share for _, seeds in rows for share in seeds]
        y = [row + 0.2 * (index - 1) for row, seeds in rows for _ in seeds]
        style = {"color": COLOURS[index], "alpha": 0.8, "clip_on": False}
        learnt.plot(x, y, MARKERS[index], label=f"rate {rate}", **style)
    learnt.set_yticks(range(len(m.trained)), [f"{x.kind}, {x.n_layers} layers" for x in m.trained])
    learnt.set(xlim=(-3, 103), xlabel="right (%), a mark a seed", title="Training with each norm")
    inside = tools.where(m.changes, training=True)
    for index, (name, label) in enumerate((("mates", "other mates"), ("padding", "more padding"))):
        x = [max(share, 1e-17) for share in tools.column(inside, name)]
        y = [row + 0.2 * index - 0.1 for row in range(len(inside))]
        neighbours.plot(x, y, MARKERS[index], color=COLOURS[index], label=label)
    neighbours.set_yticks(range(len(inside)), [change.kind for change in inside])
    neighbours.set(xscale="log", xlabel="change of a sentence's vectors (share)")
    neighbours.set_title("In training: what the rest of the batch changes")
    for row, gap in enumerate(m.gaps):
        for index, (mode, values) in enumerate((("training", gap.training), ("use", gap.use))):
            x, y = [100 * share for share in values], [row + 0.24 * index - 0.12] * len(values)
            name = f"as in {mode}" if row == 0 else "_"
            small.plot(x, y, MARKERS[index], color=COLOURS[index + 2], alpha=0.8, label=name)
    small.set_yticks(range(len(m.gaps)), [f"{gap.kind},\nbatches of {gap.batch}" for gap in m.gaps])
    small.set(xlim=(0, 103), xlabel="right (%), a mark a seed", title="Same weights, two modes")
    for axes in (learnt, neighbours, small):
        axes.invert_yaxis()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    return figure


def right_at(m: Measured, kind: str, n_layers: int, rate: float | None = None) -> Interval:
    """Return a norm's accuracy in percent at a learning rate, or at the better one."""
    [arm] = tools.where(m.trained, kind=kind, n_layers=n_layers)
    seeds = arm.accuracies[f"{rate:g}"] if rate else max(arm.accuracies.values(), key=fmean)
    return Interval.percent(seeds, 100)


def judge(m: Measured) -> Verdict:
    """Are norms needed for training, and which of them depend on the rest of the batch?"""
    none, layer, batch = "no norm", "LayerNorm pre", "BatchNorm pre"
    best = Figures({kind: right_at(m, kind, SHALLOW) for kind in KINDS})
    high = Figures({kind: right_at(m, kind, SHALLOW, HIGH) for kind in KINDS})
    deep = Figures({kind: right_at(m, kind, DEEP) for kind in (none, layer)})
    alone, mixed = (tools.where(m.changes, training=True, kind=kind)[0] for kind in (layer, batch))
    large, small = (
        Figures({gap.kind: Interval.percent(gap.use, 100) for gap in tools.where(m.gaps, batch=n)})
        for n in BATCHES
    )
    return say.verdict(
        {"n": SHALLOW, "rate": HIGH, "deep_n": DEEP, "small": BATCHES[1], "large": BATCHES[0]},
        six=best.compare(none, "<", 50),
        rate=[high.compare(none, "<", 50), high.compare(layer, ">", 50)],
        post=high.compare(POST, ">", 50),
        deep=deep.compare(layer, ">", none),
        free=compare(max(alone.mates, alone.padding), "<", SAME, layer, form=".1g"),
        bound=compare(min(mixed.mates, mixed.padding), ">", SEEN, batch, form=".2g"),
        small=small.compare(batch, "<", layer),
        large=large.compare(batch, "<", layer),
    )


SIZES = {"shallow": SHALLOW, "deep": DEEP, "steps": STEPS[SHALLOW], "deep_steps": STEPS[DEEP]}
LAB = say.make_lab(measure, tables, draw, judge, SIZES)
