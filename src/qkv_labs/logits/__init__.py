"""Lab 23: what logits are, and what label smoothing makes of them.

A language whose next-token probabilities are known is learnt, so that logits can be compared with
the truth. After half of its tokens the next one is sure, after the others it is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig
from qkv.inspect.style import COLOURS, MARKERS, new_figure
from qkv.model import Decoder
from qkv.training.loss import cross_entropy
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, mean_and_spread, plus_minus, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_TOKENS, LENGTH, BATCH, N_FEW = 12, 32, 32, 16
SMOOTHINGS = (0.0, 0.1, 0.2)
PLENTY, FEW = "plenty", "few"
BINS = 15


@dataclass(frozen=True)
class Run:
    """One trained model, measured on sequences that it never saw."""

    data: str  # fresh sequences at every step, or the same few again and again
    smoothing: float
    slope: float  # of logits on true log-probabilities, each less its row's mean; open tokens
    error: float  # root mean square of their difference
    smoothed_error: float  # the same against logarithms of (1-ε)·P + ε/V
    gap: float  # where the next token is sure: its logit less the mean of the others
    half_gap: float  # the same halfway through training
    accuracy: float
    nll: float  # nats a token
    calibration: float  # expected calibration error
    excess: float  # mean confidence less accuracy
    shared: float  # how far logits - log p is from one constant for all classes, at most


@dataclass(frozen=True)
class Binary:
    """Two fits to the same yes-or-no data of known log-odds, held out from neither."""

    slope: float  # of the sigmoid's logit on the true log-odds
    error: float  # root mean square of their difference
    difference: float  # largest between the sigmoid's logit and the softmax's difference


@dataclass(frozen=True)
class Measured:
    """Runs, the two-class fits, and what is best possible."""

    runs: list[Run]
    binary: Binary
    best_accuracy: float
    gaps: dict[str, float]  # by ε: the closed form
    free_gaps: dict[str, float]  # by ε: logits that were optimised on their own


def measure(settings: Settings) -> Measured:
    """Fit two classes, optimise free logits, and train language models."""
    truth = language(settings.seed)
    runs = list(trained(truth, settings))
    test = sample(truth, 4096, torch.Generator().manual_seed(settings.seed))
    right = truth.argmax(-1)[test[:, :-1]] == test[:, 1:]
    return Measured(
        runs,
        binary(settings.seed),
        right.float().mean().item(),
        {str(e): closed_gap(e, N_TOKENS) for e in SMOOTHINGS if e},
        {str(e): free_gap(e, N_TOKENS) for e in SMOOTHINGS if e},
    )


def language(seed: int) -> Tensor:
    """P(next | token), (V, V): the first half of the tokens is each followed by one of the rest."""
    generator, half = torch.Generator().manual_seed(seed), N_TOKENS // 2
    truth = torch.randn(N_TOKENS, N_TOKENS, generator=generator).softmax(-1)
    truth[:half] = F.one_hot(half + torch.randperm(half, generator=generator), N_TOKENS).float()
    return truth


def sample(truth: Tensor, n_sequences: int, generator: torch.Generator) -> Tensor:
    """Sequences of the language, (n, T+1)."""
    tokens = torch.randint(len(truth), (n_sequences, 1), generator=generator)
    for _ in range(LENGTH):
        following = torch.multinomial(truth[tokens[:, -1]], 1, generator=generator)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens


def trained(truth: Tensor, settings: Settings) -> Iterator[Run]:
    """Every smoothing on much and on little data, with the same seeds and steps."""
    steps, n_seeds = (1200, 5) if settings.full else (300, 3)
    for data in (PLENTY, FEW):
        for smoothing in SMOOTHINGS:
            settings.tell(f"training with ε = {smoothing}, {data} of data")
            for seed in range(n_seeds):
                yield train(truth, data, smoothing, settings.seed + seed, steps)


def train(truth: Tensor, data: str, smoothing: float, seed: int, steps: int) -> Run:
    """One language model, with the product's own loss."""
    with seeded(seed):
        model = Decoder(
            ModelConfig(
                family="decoder",
                vocab_size=N_TOKENS,
                d_model=48,
                n_heads=2,
                d_ff=96,
                n_decoder_layers=2,
                dropout=0.0,
                max_length=LENGTH,
                tie="none",
            )
        )
    generator = torch.Generator().manual_seed(seed + 1_000)
    fresh = sample(truth, BATCH * steps, generator).view(steps, BATCH, -1)
    few = sample(truth, N_FEW, generator)
    test = sample(truth, 256, torch.Generator().manual_seed(seed + 2_000))
    half_gap = 0.0

    def loss(step: int) -> Tensor:
        nonlocal half_gap
        if step == steps // 2:
            half_gap = sure_gap(predict(model, test), test)
        tokens = fresh[step] if data == PLENTY else few
        hidden, labels = model.hidden(tokens[:, :-1]), tokens[:, 1:]
        weight = model.output.projection.weight
        return cross_entropy(hidden, weight, None, labels, smoothing) / labels.numel()

    fit(model.parameters(), loss, steps)
    return examine(predict(model, test), test, truth, (data, smoothing), half_gap)


@torch.no_grad()
def predict(model: Decoder, tokens: Tensor) -> Tensor:
    """Logits of every next token, (n, T, V)."""
    return model(tokens[:, :-1])


def examine(
    logits: Tensor, tokens: Tensor, truth: Tensor, arm: tuple[str, float], half_gap: float
) -> Run:
    """All that is measured of a model's logits on held-out sequences."""
    data, smoothing = arm
    log_p, labels = logits.log_softmax(-1), tokens[:, 1:]
    confidence, guess = log_p.exp().max(-1)
    right = (guess == labels).float()
    is_open = tokens[:, :-1] >= N_TOKENS // 2
    wanted = truth[tokens[:, :-1]][is_open]
    blended = (1 - smoothing) * wanted + smoothing / N_TOKENS
    offsets = logits - log_p
    return Run(
        data,
        smoothing,
        slope(logits[is_open], wanted.log()),
        distance(logits[is_open], wanted.log()),
        distance(logits[is_open], blended.log()),
        sure_gap(logits, tokens),
        half_gap,
        right.mean().item(),
        -log_p.gather(-1, labels[..., None]).mean().item(),
        calibration_error(confidence.flatten(), right.flatten()),
        (confidence - right).mean().item(),
        (offsets.amax(-1) - offsets.amin(-1)).max().item(),
    )


def slope(logits: Tensor, log_p: Tensor) -> float:
    """Of logits on log-probabilities, (N, V) each, once every row's own constant is taken off."""
    logits, log_p = centred(logits), centred(log_p)
    return ((logits * log_p).sum() / log_p.square().sum()).item()


def distance(logits: Tensor, log_p: Tensor) -> float:
    """Root mean square of the difference, once every row's own constant is taken off."""
    return (centred(logits) - centred(log_p)).square().mean().sqrt().item()


def centred(rows: Tensor) -> Tensor:
    """Without what all classes of a row share."""
    return rows - rows.mean(-1, keepdim=True)


def sure_gap(logits: Tensor, tokens: Tensor) -> float:
    """How far the next token's logit stands above the others' mean, where the next is sure."""
    is_sure = tokens[:, :-1] < N_TOKENS // 2
    chosen = logits.gather(-1, tokens[:, 1:, None])[..., 0]
    others = (logits.sum(-1) - chosen) / (N_TOKENS - 1)
    return (chosen - others)[is_sure].mean().item()


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """|confidence - accuracy| in bins of confidence, weighted by how many fall into each."""
    place = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=confidence.dtype).index_add(0, place, confidence - right)
    return gaps.abs().sum().item() / len(confidence)


def closed_gap(smoothing: float, n: int) -> float:
    """The gap that is optimal for a sure label: log of (1 - ε + ε/V) over ε/V."""
    return math.log((1 - smoothing + smoothing / n) / (smoothing / n))


def free_gap(smoothing: float, n: int) -> float:
    """The same gap, of logits that were optimised by themselves."""
    logits, label = torch.zeros(1, n, dtype=torch.float64, requires_grad=True), torch.tensor([0])
    minimise(logits, lambda: F.cross_entropy(logits, label, label_smoothing=smoothing))
    return (logits[0, 0] - logits[0, 1:].mean()).item()


def minimise(parameter: Tensor, loss: Callable[[], Tensor]) -> None:
    """Move a parameter to where a smooth, convex loss is least."""
    optimizer = torch.optim.LBFGS(
        [parameter],
        max_iter=200,
        tolerance_grad=1e-10,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def binary(seed: int, n_examples: int = 20_000) -> Binary:
    """Fit one logit with a sigmoid and two with a softmax to data of known log-odds."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n_examples, 5, generator=generator, dtype=torch.float64)
    x[:, -1] = 1  # for the bias
    odds = x @ torch.tensor([1.0, -0.5, 0.25, 2.0, 0.5], dtype=torch.float64)
    labels = torch.rand(n_examples, generator=generator, dtype=torch.float64) < odds.sigmoid()
    one, two = (torch.zeros(5, n, dtype=torch.float64, requires_grad=True) for n in (1, 2))
    minimise(one, lambda: F.binary_cross_entropy_with_logits((x @ one)[:, 0], labels.double()))
    minimise(two, lambda: F.cross_entropy(x @ two, labels.long()))
    logit, difference = (x @ one)[:, 0].detach(), (x @ (two[:, 1] - two[:, 0])).detach()
    return Binary(
        ((logit * odds).sum() / odds.square().sum()).item(),
        (logit - odds).square().mean().sqrt().item(),
        (logit - difference).abs().max().item(),
    )


COLUMNS = {  # of the table: a run's figure, its factor and its digits
    "slope on log P": ("slope", 1, 2),
    "RMS error to log P": ("error", 1, 2),
    "to smoothed log P": ("smoothed_error", 1, 2),
    "gap halfway": ("half_gap", 1, 2),
    "gap": ("gap", 1, 2),
    "accuracy %": ("accuracy", 100, 1),
    "calibration error %": ("calibration", 100, 1),
    "confidence - accuracy": ("excess", 100, 1),
    "loss": ("nll", 1, 3),
}


def tables(m: Measured) -> tuple[Table, ...]:
    """The identities, and what smoothing does."""
    rows = tuple(
        (
            data,
            f"{smoothing:g}",
            *(
                plus_minus(
                    [factor * value for value in values(runs_of(m, data, smoothing), name)], n
                )
                for name, factor, n in COLUMNS.values()
            ),
        )
        for data, smoothing in arms(m)
    )
    identities = (
        ("logits - log p: largest spread over classes", f"{max(values(m.runs, 'shared')):.1e}"),
        ("sigmoid's logit on true log-odds: slope", f"{m.binary.slope:.3f}"),
        ("sigmoid's logit against true log-odds: RMS error", f"{m.binary.error:.3f}"),
        ("sigmoid's logit less softmax's z₁ - z₀: largest", f"{m.binary.difference:.1e}"),
        *(
            (f"free logits at ε = {e}: gap (closed form)", f"{m.free_gaps[e]:.4f} ({gap:.4f})")
            for e, gap in m.gaps.items()
        ),
        ("best possible accuracy, %", f"{100 * m.best_accuracy:.1f}"),
    )
    stated = Words("Logits as equations say", "公式所说的 logit")
    smoothed = Words("What label smoothing does, held out", "标签平滑的作用（留出数据）")
    told = Table(smoothed, ("data", "ε", *COLUMNS), rows)
    return Table(stated, ("what", "figure"), identities), told


def arms(m: Measured) -> list[tuple[str, float]]:
    """Each pair of data and smoothing, in the order of the runs."""
    return list(dict.fromkeys((run.data, run.smoothing) for run in m.runs))


def runs_of(m: Measured, data: str, smoothing: float) -> list[Run]:
    """The seeds of one arm."""
    return [run for run in m.runs if (run.data, run.smoothing) == (data, smoothing)]


def values(runs: Sequence[Run], name: str) -> list[float]:
    """One figure of each run."""
    return [getattr(run, name) for run in runs]


def draw(m: Measured) -> Figure:
    """The gap against its closed form, and what smoothing does to calibration and accuracy."""
    figure, (left, middle, right) = new_figure(9.6, 3.5, ncols=3)
    curve = [0.01 * step for step in range(1, 31)]
    left.plot(curve, [closed_gap(e, N_TOKENS) for e in curve], color="#999999", label="closed form")
    middle.axhline(0, color="#999999", ls="--", label="calibrated")
    right.axhline(100 * m.best_accuracy, color="#999999", ls="--", label="best possible")
    panels = (
        (left, "gap", 1, "logit gap where the next is sure", "How far the sure token stands out"),
        (middle, "excess", 100, "confidence less accuracy (points)", "Over- and under-confidence"),
        (right, "accuracy", 100, "right tokens, held out (%)", "Accuracy"),
    )
    for axis, name, factor, label, title in panels:
        for index, data in enumerate((PLENTY, FEW)):
            smoothings = [smoothing for one, smoothing in arms(m) if one == data]
            found = [values(runs_of(m, data, e), name) for e in smoothings]
            points = [mean_and_spread([factor * value for value in seeds]) for seeds in found]
            axis.errorbar(
                smoothings,
                *zip(*points, strict=True),
                marker=MARKERS[index],
                capsize=3,
                color=COLOURS[index],
                label=f"{data} of data" if data == PLENTY else "few data",
            )
        axis.set(title=title, xlabel="smoothing ε", ylabel=label)
        axis.legend()
    return figure


def judge(m: Measured) -> Verdict:
    """Are logits what the equations say, and are they so of the world as well?"""
    plain = fmean(values(runs_of(m, PLENTY, 0.0), "slope"))
    errors = {arm: fmean(values(runs_of(m, *arm), "error")) for arm in arms(m)}
    identities = max(values(m.runs, "shared")) < 1e-3 and m.binary.difference < 1e-2
    meaning = abs(m.binary.slope - 1) < 0.05 and abs(plain - 1) < 0.1
    because = _because(m, errors)
    if not (identities and meaning):
        return Verdict("does not hold", because)
    when = _when(errors)
    if when is None:
        return Verdict("holds", because)
    return Verdict("holds when", Words(when.en + because.en, when.zh + because.zh))


def _when(errors: dict[tuple[str, float], float]) -> Words | None:
    """What takes logits half as far again from the truth as plenty of data without smoothing."""
    limit, found = 1.5 * errors[PLENTY, 0.0], []
    if errors[FEW, 0.0] > limit:
        found.append(Words("plenty of data", "数据充足"))
    if max(errors[PLENTY, smoothing] for smoothing in SMOOTHINGS) > limit:
        found.append(Words("no smoothing", "不加平滑"))
    en, zh = " and ".join(one.en for one in found), "、".join(one.zh for one in found)
    en = f"Holds of the model's own probabilities; of the true ones, when there is {en}. "
    return Words(en, f"对模型自己的概率恒成立；对真实概率，则要{zh}。") if found else None


def _because(m: Measured, errors: dict[tuple[str, float], float]) -> Words:
    smoothing = min(run.smoothing for run in m.runs if run.smoothing)
    four = [runs_of(m, data, e) for data in (PLENTY, FEW) for e in (0.0, smoothing)]

    def mean(runs: list[Run], name: str, factor: float = 100) -> float:
        return factor * fmean(values(runs, name))

    shared = max(values(m.runs, "shared"))
    calibration = [mean(runs, "calibration") for runs in four]
    right = [mean(runs, "accuracy") for runs in four]
    gap, closed = mean(four[1], "gap", 1), m.gaps[str(smoothing)]
    loose = [mean(four[0], name, 1) for name in ("half_gap", "gap")]
    error = [errors[PLENTY, 0.0], errors[PLENTY, smoothing], errors[FEW, 0.0]]
    return Words(
        f"Logits - log p varies by {shared:.0e} over the classes; sigmoid and two-class softmax "
        f"agree within {m.binary.difference:.0e}, and that logit is {m.binary.slope:.2f} times the "
        f"log-odds. Logits are {error[0]:.2f} nats off the true log-probabilities (RMS), "
        f"{error[1]:.2f} with ε = {smoothing:g} and {error[2]:.2f} with few data. Smoothed, "
        f"the gap is {gap:.2f} (closed form {closed:.2f}; without it {loose[0]:.1f} halfway, "
        f"{loose[1]:.1f} at the end). It takes the calibration error from {calibration[0]:.1f} to "
        f"{calibration[1]:.1f}% with plenty of data, from {calibration[2]:.0f} to "
        f"{calibration[3]:.0f}% with few, and accuracy from {right[0]:.1f} to {right[1]:.1f}% and "
        f"from {right[2]:.1f} to {right[3]:.1f}%.",
        f"logit - log p 在各类间最多相差 {shared:.0e}；sigmoid 与二分类 softmax 相差不到 "
        f"{m.binary.difference:.0e}，其 logit 是对数几率的 {m.binary.slope:.2f} 倍。logit 与真实对"
        f"数概率的均方根误差为 {error[0]:.2f} nat，ε = {smoothing:g} 时为 {error[1]:.2f}，数据太少"
        f"时为 {error[2]:.2f}。平滑后的 logit 差距为 {gap:.2f}（闭式解 {closed:.2f}；不平滑则半程"
        f"为 {loose[0]:.1f}、结束时为 {loose[1]:.1f}）；校准误差在数据充足时由 "
        f"{calibration[0]:.1f}% 变为 {calibration[1]:.1f}%，数据少时由 {calibration[2]:.0f}% 变为 "
        f"{calibration[3]:.0f}%；正确率分别由 {right[0]:.1f}% 变为 {right[1]:.1f}%、由 "
        f"{right[2]:.1f}% 变为 {right[3]:.1f}%。",
    )


LAB = Lab(
    number=23,
    name="logits",
    title=Words("What a logit is", "logit 究竟是什么"),
    claim=Words(
        "Softmax's logits are log-probabilities but for one constant that all classes share; the "
        "sigmoid's logit is the log-odds.",
        "softmax 的 logit 就是对数概率，只差一个各类别共有的常数；sigmoid 的 logit 则是对数几率。",
    ),
    experiment=Words(
        "Learn a language whose probabilities are known, and compare logits with true log-"
        "probabilities on held-out text: with plenty of data and with few, each with label "
        "smoothing 0, 0.1 and 0.2; the model, seeds, steps and learning rate are the same. Also "
        "fit a sigmoid and a two-class softmax to data of known log-odds.",
        "让模型学习一种概率已知的语言，在留出文本上比较 logit 与真实对数概率：数据充足与稀少各做一"
        "遍，标签平滑取 0、0.1、0.2，模型、种子、步数和学习率都相同；另在对数几率已知的数据上分别拟"
        "合 sigmoid 与二分类 softmax。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
