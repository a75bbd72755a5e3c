"""Lab 8: what normalising does for training, and why over the token and not over the batch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import Encoder, Layout, Residual
from qkv_labs import tools
from qkv_labs.chinese import Texts
from qkv_labs.figures import COLOURS, MARKERS, Figure, new_figure
from qkv_labs.lab import Settings, Table, Verdict, Words

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
AHEAD, LEARNT = 0.2, 0.5  # a lead of so many answers is one; with fewer right, little is learnt


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
    model = tools.encoder(
        positions="rotary",
        vocab_size=1 + N_WORDS,
        d_model=D_MODEL,
        n_heads=4,
        d_ff=2 * D_MODEL,
        n_encoder_layers=n_layers,
        max_length=2 * LONGEST,
        head="token",
        n_labels=1 + N_WORDS,
        embedding_scale=False,
        norm="rms" if name == "RMSNorm" else "layer",
        norm_position="post" if position == "post" else "pre",
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
    mates, padded = (
        vectors(other_words, other_lengths),
        vectors(F.pad(words, (0, LONGEST)), lengths),
    )
    return float((mates - alone).norm() / alone.norm()), float(
        (padded - alone).norm() / alone.norm()
    )


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
            for rate in RATES[n_layers]:
                for seed in some:
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
    with torch.random.fork_rng():
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
    learnt = [
        (
            arm.kind,
            str(arm.n_layers),
            *(
                tools.percent(arm.accuracies[rate]) if rate in arm.accuracies else "–"
                for rate in _rates(m)
            ),
        )
        for arm in m.trained
    ]
    learnt_title = (
        "Right answers after training, in %, by learning rate (0: the weights are no numbers any "
        "more)"
    )
    changes = "What a sentence's surroundings change in its vectors (share of their length)"
    modes = (
        "Right answers of the same weights with the batch's own statistics (training) and "
        "with running ones (use), in %"
    )
    return [
        Table(
            say("learnt", learnt_title),
            ("norm", "layers", *(f"rate {rate}" for rate in _rates(m))),
            learnt,
        ),
        Table.of(
            say("changes", changes),
            m.changes,
            {
                "norm": "{0.kind}",
                "mode": lambda change: "training" if change.training else "use",
                "other batch-mates": lambda change: tools.tiny(change.mates),
                "more padding": lambda change: tools.tiny(change.padding),
            },
        ),
        Table.of(
            say("modes", modes),
            m.gaps,
            {
                "norm": "{0.kind}",
                "sentences a batch": "{0.batch}",
                "training": lambda gap: tools.percent(gap.training),
                "use": lambda gap: tools.percent(gap.use),
            },
        ),
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


def by_rate(m: Measured, kind: str, n_layers: int) -> dict[str, float]:
    """Return a norm's mean accuracy at each learning rate."""
    [arm] = tools.where(m.trained, kind=kind, n_layers=n_layers)
    return {rate: fmean(seeds) for rate, seeds in arm.accuracies.items()}


def judge(m: Measured) -> Verdict:
    """Independence must be exact; whether norms are needed is asked at six layers and deeper."""
    layer, batch = (
        tools.where(m.changes, training=True, kind=kind)[0]
        for kind in ("LayerNorm pre", "BatchNorm pre")
    )
    free = max(layer.mates, layer.padding) <= SAME and min(batch.mates, batch.padding) > SEEN
    arms = ("no norm", "LayerNorm pre")
    none, normed = (max(by_rate(m, kind, SHALLOW).values()) for kind in arms)
    deep_none, deep_normed = (max(by_rate(m, kind, DEEP).values()) for kind in arms)
    high_none, high_normed = (by_rate(m, kind, SHALLOW)[f"{HIGH:g}"] for kind in arms)
    shares = [none, normed, high_none, high_normed, deep_none, deep_normed]
    numbers = _numbers(m, layer, batch, shares)
    if free and normed >= none + AHEAD:
        return Verdict("holds", numbers)
    conditions = [
        words
        for words, without, with_norm in (
            (say("deep", "the stack has {n} layers", n=DEEP), deep_none, deep_normed),
            (say("high", "the rate is {rate:g}", rate=HIGH), high_none, high_normed),
        )
        if with_norm >= without + AHEAD
    ]
    if not (free and conditions):
        return Verdict("does not hold", numbers)
    when = "As to batches it does; as to training when {conditions}. "
    joined = Words.join(conditions, " or ", "或")
    return Verdict("holds when", say("when", when, conditions=joined) + numbers)


def _numbers(m: Measured, layer: Change, batch: Change, shares: list[float]) -> Words:
    use = {f"{gap.kind.split()[0]} {gap.batch}": 100 * fmean(gap.use) for gap in m.gaps}
    large, few = BATCHES
    little = say("little", ", so LayerNorm too learnt little there in so few steps")
    return say(
        "because",
        "{shallow} layers are right on {p[0]:.0f} % without norms and on {p[1]:.0f} % with "
        "LayerNorm at the better rate, on {p[2]:.0f} % and {p[3]:.0f} % at {high:g} (post-norm: "
        "{post:.0f} %); {deep} layers on {p[4]:.0f} % and {p[5]:.0f} %{little}. In training, other "
        "batch-mates and more padding change a sentence's vectors by {mates:.0f} % and "
        "{padding:.0f} % with BatchNorm, and by no more than {rest} with LayerNorm; trained with "
        "{large} sentences a batch, and with {few} for twice the steps, BatchNorm is right on "
        "{batched[0]:.0f} % and {batched[1]:.0f} %, LayerNorm on {layered[0]:.0f} % and "
        "{layered[1]:.0f} %.",
        **{"shallow": SHALLOW, "deep": DEEP, "high": HIGH, "large": large, "few": few},
        p=[100 * share for share in shares],
        post=100 * by_rate(m, "LayerNorm post", SHALLOW)[f"{HIGH:g}"],
        little=little if shares[-1] < LEARNT else "",
        mates=100 * batch.mates,
        padding=100 * batch.padding,
        rest=tools.tiny(max(layer.mates, layer.padding), 0),
        layered=[use[f"LayerNorm {rows}"] for rows in BATCHES],
        batched=[use[f"BatchNorm {rows}"] for rows in BATCHES],
    )


LAB = say.make_lab(
    "Why LayerNorm",
    claim=(
        "Without LayerNorm a Transformer of six layers or more can hardly be trained; and "
        "BatchNorm suits language badly, since it depends on the size of the batch and on padding, "
        "while LayerNorm depends on neither."
    ),
    experiment=(
        "The same stack with no norm, LayerNorm (post and pre), RMSNorm or BatchNorm learns to "
        "name the word before from padded batches, at two learning rates: {shallow} layers, "
        "{steps} steps, three seeds; and {deep} layers, without norms and with "
        "LayerNorm, {deep_steps} steps, two seeds (--full: three times the steps, two seeds "
        "more). BatchNorm stands where LayerNorm stood and so counts padding too. Then we change a "
        "sentence's batch-mates and padding and compare its vectors, and the answers of models "
        "trained with large and small batches, as in training and as in use."
    ),
    functions=(measure, tables, draw, judge),
    values={"shallow": SHALLOW, "deep": DEEP, "steps": STEPS[SHALLOW], "deep_steps": STEPS[DEEP]},
)
