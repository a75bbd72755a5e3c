"""Lab 8: what normalising does for training, and why over the token and not over the batch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Encoder, Layout, Residual
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, plus_minus, tiny

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_WORDS, D_MODEL = 12, 32
SHALLOW, DEEP = 6, 24  # the notes: without norms, six layers hardly train
SHORTEST, LONGEST = 3, 10  # words; padding fills up
KINDS = ("no norm", "LayerNorm post", "LayerNorm pre", "RMSNorm pre", "BatchNorm pre")
RATES = {SHALLOW: (1e-2, 1e-1), DEEP: (3e-3, 1e-2)}
HIGH = max(RATES[SHALLOW])
STEPS = {SHALLOW: 80, DEEP: 60}
BATCHES = (32, 2)
SAME, SEEN = 1e-9, 1e-3  # a change below is rounding in float64; one above is not
AHEAD, LEARNT = 0.2, 0.5  # a lead of so many answers is one; with fewer right, little is learnt


class BatchNorm(nn.BatchNorm1d):
    """Each feature over all tokens, padding too: a BatchNorm put where the LayerNorm stood."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return super().forward(x.flatten(0, 1)).view_as(x)


@dataclass(frozen=True)
class Trained:
    """A norm's right answers at a depth, by learning rate, a seed each."""

    kind: str
    n_layers: int
    accuracies: dict[str, list[float]]


@dataclass(frozen=True)
class Change:
    """How much a sentence's vectors change with what stands beside it, share of their length."""

    kind: str
    training: bool  # whether the model is in training or in use
    mates: float  # other sentences in the batch
    padding: float  # as many columns of padding again


@dataclass(frozen=True)
class Gap:
    """Right answers of a model trained with this batch size: as in training, and as in use."""

    kind: str
    batch: int
    training: list[float]
    use: list[float]


@dataclass(frozen=True)
class Measured:
    """Training, what neighbours change, and small batches."""

    trained: list[Trained]
    changes: list[Change]
    gaps: list[Gap]


def build(kind: str, n_layers: int = SHALLOW) -> Encoder:
    """A stack with this norm in all places; nothing else differs."""
    name, _, place = kind.partition(" ")
    model = Encoder(
        ModelConfig(
            family="encoder",
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
            dropout=0.0,
            norm="rms" if name == "RMSNorm" else "layer",
            norm_position="post" if place == "post" else "pre",
        )
    )
    if name in ("no", "BatchNorm"):
        for module in model.modules():
            if isinstance(module, Residual):
                module.norm = nn.Identity() if name == "no" else BatchNorm(D_MODEL)
        if place != "post":
            model.encoder.norm = nn.Identity() if name == "no" else BatchNorm(D_MODEL)
    return model


def task(rows: int) -> tuple[Tensor, Layout, Tensor]:
    """Random words padded with 0, how they lie, and the word before each but the first."""
    lengths = torch.randint(SHORTEST, LONGEST + 1, (rows,))
    words = torch.randint(1, 1 + N_WORDS, (rows, LONGEST))
    words = words * (torch.arange(LONGEST) < lengths[:, None])
    before = words[:, :-1].masked_fill(words[:, 1:] == 0, -100)
    return words, Layout(lengths=lengths), before


def train(
    kind: str, rate: float, seed: int, steps: int, rows: int = BATCHES[0], n_layers: int = SHALLOW
) -> Encoder:
    """Teach a fresh model the word before."""
    torch.manual_seed(seed)
    model = build(kind, n_layers)

    def loss(step: int) -> Tensor:
        words, layout, before = task(rows)
        return F.cross_entropy(model(words, layout)[:, 1:].flatten(0, 1), before.flatten())

    fit(model.parameters(), loss, steps, lr=rate)
    return model


@torch.no_grad()
def right(model: Encoder, rows: int, training: bool) -> float:
    """The share of right answers on new words in batches of this size, as in training or in use."""
    model = deepcopy(model).train(training)  # training moves a BatchNorm's running figures
    torch.manual_seed(1)
    n_right = n_asked = 0
    for _ in range(512 // rows):
        words, layout, before = task(rows)
        asked = before != -100
        n_right += int((model(words, layout)[:, 1:].argmax(dim=-1) == before)[asked].sum())
        n_asked += int(asked.sum())
    return n_right / n_asked


@torch.no_grad()
def change(model: Encoder, training: bool) -> tuple[float, float]:
    """What other batch-mates, and more padding, change in the vectors of one sentence."""
    torch.manual_seed(2)
    words, layout, _ = task(8)
    others, more, _ = task(8)
    assert layout.lengths is not None and more.lengths is not None
    length = int(layout.lengths[0])
    others[0], more.lengths[0] = words[0], length

    def vectors(words: Tensor, layout: Layout) -> Tensor:
        fresh = deepcopy(model).double().train(training)
        return fresh.hidden(words, layout)[0, :length]

    alone = vectors(words, layout)
    mates, padded = vectors(others, more), vectors(F.pad(words, (0, LONGEST)), layout)
    length_of = alone.norm()
    return float((mates - alone).norm() / length_of), float((padded - alone).norm() / length_of)


def measure_training(settings: Settings) -> tuple[list[Trained], dict[str, Encoder]]:
    """Each norm at each rate, deep stacks with and without; a trained model of each norm."""
    seeds = range(settings.seed, settings.seed + (5 if settings.full else 3))
    trained: list[Trained] = []
    models: dict[str, Encoder] = {}
    for n_layers, kinds, some in (
        (SHALLOW, KINDS, seeds),
        (DEEP, ("no norm", "LayerNorm pre"), seeds[:-1]),
    ):
        steps = STEPS[n_layers] * (3 if settings.full else 1)
        for kind in kinds:
            settings.tell(f"training: {kind}, {n_layers} layers")
            found: dict[str, list[float]] = {f"{rate:g}": [] for rate in RATES[n_layers]}
            for rate in RATES[n_layers]:
                for seed in some:
                    model = train(kind, rate, seed, steps, n_layers=n_layers)
                    found[f"{rate:g}"].append(right(model, BATCHES[0], training=False))
                    models.setdefault(kind, model)
            trained.append(Trained(kind, n_layers, found))
    return trained, models


def measure_gap(kind: str, rows: int, settings: Settings) -> Gap:
    """Train with batches of this size; right answers as in training and as in use."""
    settings.tell(f"training: {kind}, batches of {rows}")
    steps = STEPS[SHALLOW] * (6 if settings.full else 2) // (2 if rows == BATCHES[0] else 1)
    training, use = [], []
    for seed in range(settings.seed, settings.seed + (5 if settings.full else 3)):
        model = train(kind, RATES[SHALLOW][0], seed, steps, rows)
        training.append(right(model, rows, training=True))
        use.append(right(model, rows, training=False))
    return Gap(kind, rows, training, use)


def measure(settings: Settings) -> Measured:
    """Train with each norm, look at what neighbours change, then make batches small."""
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


def tables(m: Measured) -> tuple[Table, ...]:
    """Right answers by rate, what neighbours change, and small batches."""
    rates = sorted({rate for one in m.trained for rate in one.accuracies}, key=float)
    learnt = tuple(
        (
            one.kind,
            str(one.n_layers),
            *(
                plus_minus([100 * x for x in one.accuracies[rate]])
                if rate in one.accuracies
                else "–"
                for rate in rates
            ),
        )
        for one in m.trained
    )
    neighbours = tuple(
        (one.kind, "training" if one.training else "use", tiny(one.mates), tiny(one.padding))
        for one in m.changes
    )
    small = tuple(
        (
            one.kind,
            str(one.batch),
            *(plus_minus([100 * x for x in part]) for part in (one.training, one.use)),
        )
        for one in m.gaps
    )
    return (
        Table(
            Words(
                "Right answers after training, in %, by learning rate (0: the weights are no "
                "numbers any more)",
                "训练后的正确率，%，按学习率（0 表示权重已发散）",
            ),
            ("norm", "layers", *(f"rate {rate}" for rate in rates)),
            learnt,
        ),
        Table(
            Words(
                "What a sentence's surroundings change in its vectors (share of their length)",
                "同批的其他句子、补齐的长度会使一句话的向量改变多少（占向量长度之比）",
            ),
            ("norm", "mode", "other batch-mates", "more padding"),
            neighbours,
        ),
        Table(
            Words(
                "Right answers of the same weights with the batch's own statistics (training) and "
                "with running ones (use), in %",
                "同一组权重的正确率，%：训练模式（用当前批次的统计量）与使用模式（用滑动统计量）",
            ),
            ("norm", "sentences a batch", "training", "use"),
            small,
        ),
    )


def draw(m: Measured) -> Figure:
    """Training by norm and rate, what neighbours change, and small batches."""
    from qkv.inspect.draw import COLOURS, MARKERS, new_figure

    figure, (learnt, neighbours, small) = new_figure(12.5, 3.8, nrows=1, ncols=3)
    rates = sorted({rate for one in m.trained for rate in one.accuracies}, key=float)
    for which, rate in enumerate(rates):
        rows = [
            (row, one.accuracies[rate])
            for row, one in enumerate(m.trained)
            if rate in one.accuracies
        ]
        learnt.plot(
            [100 * x for _, seeds in rows for x in seeds],
            [row + 0.2 * (which - 1) for row, seeds in rows for _ in seeds],
            MARKERS[which],
            color=COLOURS[which],
            alpha=0.8,
            label=f"rate {rate}",
            clip_on=False,
        )
    learnt.set_yticks(range(len(m.trained)), [f"{x.kind}, {x.n_layers} layers" for x in m.trained])
    learnt.set(xlim=(-3, 103), xlabel="right (%), a mark a seed", title="Training with each norm")
    inside = [one for one in m.changes if one.training]
    for which, name in enumerate(("mates", "padding")):
        neighbours.plot(
            [max(getattr(one, name), 1e-17) for one in inside],
            [row + 0.2 * which - 0.1 for row in range(len(inside))],
            MARKERS[which],
            color=COLOURS[which],
            label={"mates": "other mates", "padding": "more padding"}[name],
        )
    neighbours.set_yticks(range(len(inside)), [one.kind for one in inside])
    neighbours.set(
        xscale="log",
        xlabel="change of a sentence's vectors (share)",
        title="In training: what the rest of the batch changes",
    )
    for row, gap in enumerate(m.gaps):
        for which, (mode, values) in enumerate((("training", gap.training), ("use", gap.use))):
            small.plot(
                [100 * x for x in values],
                [row + 0.24 * which - 0.12] * len(values),
                MARKERS[which],
                color=COLOURS[which + 2],
                alpha=0.8,
                label=f"as in {mode}" if row == 0 else None,
            )
    small.set_yticks(range(len(m.gaps)), [f"{one.kind},\nbatches of {one.batch}" for one in m.gaps])
    small.set(xlim=(0, 103), xlabel="right (%), a mark a seed", title="Same weights, two modes")
    for axes in (learnt, neighbours, small):
        axes.invert_yaxis()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    return figure


def by_rate(m: Measured, kind: str, n_layers: int) -> dict[str, float]:
    """A norm's mean accuracy at each learning rate."""
    arm = next(one for one in m.trained if (one.kind, one.n_layers) == (kind, n_layers))
    return {rate: fmean(seeds) for rate, seeds in arm.accuracies.items()}


def judge(m: Measured) -> Verdict:
    """Independence must be exact; whether norms are needed is asked at six layers and deeper."""
    layer, batch = in_training(m)
    free = max(layer.mates, layer.padding) <= SAME and min(batch.mates, batch.padding) > SEEN
    arms = ("no norm", "LayerNorm pre")
    none, normed = (max(by_rate(m, kind, SHALLOW).values()) for kind in arms)
    deep_none, deep_normed = (max(by_rate(m, kind, DEEP).values()) for kind in arms)
    high_none, high_normed = (by_rate(m, kind, SHALLOW)[f"{HIGH:g}"] for kind in arms)
    numbers = _numbers(m, [none, normed, high_none, high_normed, deep_none, deep_normed])
    if free and normed >= none + AHEAD:
        return Verdict("holds", numbers)
    conditions = [
        words
        for words, without, with_norm in (
            (Words(f"the stack has {DEEP} layers", f"网络有 {DEEP} 层"), deep_none, deep_normed),
            (Words(f"the rate is {HIGH:g}", f"学习率高达 {HIGH:g} "), high_none, high_normed),
        )
        if with_norm >= without + AHEAD
    ]
    if not (free and conditions):
        return Verdict("does not hold", numbers)
    return Verdict(
        "holds when",
        Words(
            "As to batches it does; as to training when "
            + " or ".join(words.en for words in conditions)
            + ". "
            + numbers.en,
            "批次方面成立；训练方面，"
            + "或".join(words.zh for words in conditions)
            + "时才成立。"
            + numbers.zh,
        ),
    )


def in_training(m: Measured) -> list[Change]:
    """What surroundings change in training with LayerNorm, and with BatchNorm."""
    return [
        next(one for one in m.changes if one.training and one.kind == kind)
        for kind in ("LayerNorm pre", "BatchNorm pre")
    ]


def _numbers(m: Measured, shares: list[float]) -> Words:
    layer, batch = in_training(m)
    post = f"{100 * by_rate(m, 'LayerNorm post', SHALLOW)[f'{HIGH:g}']:.0f} %"
    a, b, c, d, e, f = (f"{100 * x:.0f} %" for x in shares)
    large, few = BATCHES
    little = shares[-1] < LEARNT
    use = {(x.kind.split()[0], x.batch): f"{100 * fmean(x.use):.0f} %" for x in m.gaps}
    mates, padding = f"{100 * batch.mates:.0f} %", f"{100 * batch.padding:.0f} %"
    rest = tiny(max(layer.mates, layer.padding), 0)
    layered, batched = ((use[kind, large], use[kind, few]) for kind in ("LayerNorm", "BatchNorm"))
    return Words(
        f"{SHALLOW} layers are right on {a} without norms and on {b} with LayerNorm at the better "
        f"rate, on {c} and {d} at {HIGH:g} (post-norm: {post}); {DEEP} layers on {e} and {f}"
        f"{', so LayerNorm too learnt little there in so few steps' if little else ''}. In "
        "training, other batch-mates and more padding change a sentence's vectors by "
        f"{mates} and {padding} with BatchNorm, and by no more than {rest} with LayerNorm; trained "
        f"with {large} sentences a batch, and with {few} for twice the steps, BatchNorm is right "
        f"on {batched[0]} and {batched[1]}, LayerNorm on {layered[0]} and {layered[1]}.",
        f"{SHALLOW} 层网络在较好的学习率下，无归一化答对 {a}，用 LayerNorm 答对 {b}；学习率为 "
        f"{HIGH:g} 时是 {c} 和 {d}（后归一化：{post}）；{DEEP} 层时是 {e} 和 {f}"
        f"{'，可见步数这么少，有 LayerNorm 也没学会多少' if little else ''}。训练模式下，"
        f"换掉同批的句子、增加补齐，BatchNorm 使一句话的向量改变 {mates} 和 {padding}，"
        f"LayerNorm 不超过 {rest}。每批 {large} 句，以及每批 {few} 句、步数加倍时，BatchNorm 答对 "
        f"{batched[0]}、{batched[1]}，LayerNorm 答对 {layered[0]}、{layered[1]}。",
    )


LAB = Lab(
    number=8,
    name="norm",
    title=Words("Why LayerNorm", "为什么用 LayerNorm"),
    claim=Words(
        "Without LayerNorm a Transformer of six layers or more can hardly be trained; and "
        "BatchNorm suits language badly, since it depends on the size of the batch and on padding, "
        "while LayerNorm depends on neither.",
        "没有层归一化，六层及更深的 Transformer 几乎训练不动；批归一化不适合语言任务，"
        "因为它的结果会随批次大小和补齐而变，层归一化则不会。",
    ),
    experiment=Words(
        f"The same stack with no norm, LayerNorm (post and pre), RMSNorm or BatchNorm learns to "
        f"name the word before from padded batches, at two learning rates: {SHALLOW} layers, "
        f"{STEPS[SHALLOW]} steps, three seeds; and {DEEP} layers, without norms and with "
        f"LayerNorm, {STEPS[DEEP]} steps, two seeds (--full: three times the steps, two seeds "
        "more). BatchNorm stands where LayerNorm stood and so counts padding too. Then we change a "
        "sentence's batch-mates and padding and compare its vectors, and the answers of models "
        "trained with large and small batches, as in training and as in use.",
        "同一个网络分别不用归一化、用 LayerNorm（后置与前置）、RMSNorm 或 BatchNorm，"
        f"在带补齐的批次上学习“说出前一个词”，学习率两种：{SHALLOW} 层训练 {STEPS[SHALLOW]} 步，"
        f"三个随机种子；另有 {DEEP} 层的无归一化与 LayerNorm 对照，{STEPS[DEEP]} 步，两个种子"
        "（加 --full：步数为三倍，种子多两个）。BatchNorm 直接换在 LayerNorm 的位置上，"
        "补齐的词元也计算在内。然后更换同批句子和补齐长度，比较同一句话的向量；"
        "再比较大小批次训练出的模型在训练模式与使用模式下的正确率。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
