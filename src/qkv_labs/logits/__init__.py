"""Lab 23: what logits are, and what label smoothing makes of them.

The models learn a language whose next-token probabilities are known, so that logits can be
compared with the truth. After half of its tokens the next one is sure, after the others it is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.model import Decoder
from qkv_labs import tools
from qkv_labs.chinese import Texts
from qkv_labs.figures import GREY, Figure, error_bars, new_figure
from qkv_labs.lab import Settings, Table, Verdict, Words

say = Texts("logits")

N_TOKENS, LENGTH, BATCH, N_FEW = 12, 32, 32, 16
SMOOTHINGS = (0.0, 0.1, 0.2)
PLENTY, FEW = "plenty", "few"
BINS = 15


@dataclass(frozen=True)
class Run:
    """One trained model, measured on held-out sequences."""

    data: str  # new sequences at every step, or the same few again and again
    smoothing: float
    slope: float  # of logits on true log-probabilities, each less its row's mean; open tokens
    error: float  # root mean square of their difference
    smoothed_error: float  # against logarithms of (1-ε)·P + ε/V
    gap: float  # where the next token is sure: its logit less the mean of the others
    half_gap: float  # the gap halfway through training
    accuracy: float
    nll: float  # nats a token
    calibration: float  # expected calibration error
    excess: float  # mean confidence less accuracy
    shared: float  # how far logits - log p is from one constant for all classes, at most


@dataclass(frozen=True)
class Binary:
    """Two fits to the same yes-or-no data of known log-odds."""

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
    """Draw P(next | token), (V, V): each token of the first half is followed by one of the rest."""
    generator, half = torch.Generator().manual_seed(seed), N_TOKENS // 2
    truth = torch.randn(N_TOKENS, N_TOKENS, generator=generator).softmax(-1)
    truth[:half] = F.one_hot(half + torch.randperm(half, generator=generator), N_TOKENS).float()
    return truth


def sample(truth: Tensor, n_sequences: int, generator: torch.Generator) -> Tensor:
    """Draw sequences of the language, (n, T+1)."""
    tokens = torch.randint(len(truth), (n_sequences, 1), generator=generator)
    for _ in range(LENGTH):
        following = torch.multinomial(truth[tokens[:, -1]], 1, generator=generator)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens


def trained(truth: Tensor, settings: Settings) -> Iterator[Run]:
    """Train every smoothing on much and on little data, with the same seeds and steps."""
    for data in (PLENTY, FEW):
        for smoothing in SMOOTHINGS:
            settings.tell(f"training with ε = {smoothing}, {data} of data")
            for seed in settings.seeds(3, 5):
                yield train(truth, data, smoothing, seed, settings.pick(300, 1200))


def train(truth: Tensor, data: str, smoothing: float, seed: int, steps: int) -> Run:
    """Train and examine one language model."""
    model = tools.decoder(
        seed,
        vocab_size=N_TOKENS,
        d_model=48,
        n_heads=2,
        d_ff=96,
        n_decoder_layers=2,
        max_length=LENGTH,
        tie="none",
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
        logits, labels = model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)

    tools.fit(model, loss, steps)
    return examine(predict(model, test), test, truth, (data, smoothing), half_gap)


@torch.no_grad()
def predict(model: Decoder, tokens: Tensor) -> Tensor:
    """Return logits of every next token, (n, T, V)."""
    return model(tokens[:, :-1])


def examine(
    logits: Tensor, tokens: Tensor, truth: Tensor, arm: tuple[str, float], half_gap: float
) -> Run:
    """Measure a model's logits on held-out sequences."""
    log_p, labels, smoothing = logits.log_softmax(-1), tokens[:, 1:], arm[1]
    confidence, guess = log_p.exp().max(-1)
    right = (guess == labels).float()
    is_open = tokens[:, :-1] >= N_TOKENS // 2
    wanted = truth[tokens[:, :-1]][is_open]
    blended = (1 - smoothing) * wanted + smoothing / N_TOKENS
    offsets = logits - log_p
    return Run(
        *arm,
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
    """Slope of logits on log-probabilities, (N, V) each, less every row's own constant."""
    logits, log_p = centred(logits), centred(log_p)
    return ((logits * log_p).sum() / log_p.square().sum()).item()


def distance(logits: Tensor, log_p: Tensor) -> float:
    """Root mean square of the difference, less every row's own constant."""
    return (centred(logits) - centred(log_p)).square().mean().sqrt().item()


def centred(rows: Tensor) -> Tensor:
    """Subtract what all classes of a row share."""
    return rows - rows.mean(-1, keepdim=True)


def sure_gap(logits: Tensor, tokens: Tensor) -> float:
    """Return how far the next token's logit is above the others' mean, where the next is sure."""
    is_sure = tokens[:, :-1] < N_TOKENS // 2
    chosen = logits.gather(-1, tokens[:, 1:, None])[..., 0]
    others = (logits.sum(-1) - chosen) / (N_TOKENS - 1)
    return (chosen - others)[is_sure].mean().item()


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """Return |confidence - accuracy| in bins of confidence, weighted by their sizes."""
    bin_of = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=confidence.dtype).index_add(0, bin_of, confidence - right)
    return gaps.abs().sum().item() / len(confidence)


def closed_gap(smoothing: float, n: int) -> float:
    """Return the optimal gap for a sure label: log of (1 - ε + ε/V) over ε/V."""
    return math.log((1 - smoothing + smoothing / n) / (smoothing / n))


def free_gap(smoothing: float, n: int) -> float:
    """Return the gap of logits that were optimised by themselves."""
    logits, label = torch.zeros(1, n, dtype=torch.float64, requires_grad=True), torch.tensor([0])
    minimise(logits, lambda: F.cross_entropy(logits, label, label_smoothing=smoothing))
    return (logits[0, 0] - logits[0, 1:].mean()).item()


def minimise(parameter: Tensor, loss: Callable[[], Tensor]) -> None:
    """Move a parameter to the minimum of a smooth, convex loss."""
    exact: dict[str, Any] = {"max_iter": 200, "tolerance_grad": 1e-10, "tolerance_change": 0}
    optimizer = torch.optim.LBFGS([parameter], line_search_fn="strong_wolfe", **exact)

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
    single, pair = (torch.zeros(5, n, dtype=torch.float64, requires_grad=True) for n in (1, 2))
    minimise(
        single, lambda: F.binary_cross_entropy_with_logits((x @ single)[:, 0], labels.double())
    )
    minimise(pair, lambda: F.cross_entropy(x @ pair, labels.long()))
    logit, difference = (x @ single)[:, 0].detach(), (x @ (pair[:, 1] - pair[:, 0])).detach()
    return Binary(
        ((logit * odds).sum() / odds.square().sum()).item(),
        (logit - odds).square().mean().sqrt().item(),
        (logit - difference).abs().max().item(),
    )


COLUMNS = {  # of the table: a run's figure, its digits and its factor
    "slope on log P": ("slope", 2, 1),
    "RMS error to log P": ("error", 2, 1),
    "to smoothed log P": ("smoothed_error", 2, 1),
    "gap halfway": ("half_gap", 2, 1),
    "gap": ("gap", 2, 1),
    "accuracy %": ("accuracy", 1, 100),
    "calibration error %": ("calibration", 1, 100),
    "confidence - accuracy": ("excess", 1, 100),
    "loss": ("nll", 3, 1),
}


def tables(m: Measured) -> list[Table]:
    """The identities, and what smoothing does."""
    rows = [
        (
            data,
            f"{smoothing:g}",
            *(
                tools.plus_minus(values(m, data, smoothing, name), digits, factor)
                for name, digits, factor in COLUMNS.values()
            ),
        )
        for data, smoothing in arms(m)
    ]
    shared = max(tools.column(m.runs, "shared"))
    identities = [
        ("logits - log p: largest spread over classes", f"{shared:.1e}"),
        ("sigmoid's logit on true log-odds: slope", f"{m.binary.slope:.3f}"),
        ("sigmoid's logit against true log-odds: RMS error", f"{m.binary.error:.3f}"),
        ("sigmoid's logit less softmax's z₁ - z₀: largest", f"{m.binary.difference:.1e}"),
        *(
            (f"free logits at ε = {e}: gap (closed form)", f"{m.free_gaps[e]:.4f} ({gap:.4f})")
            for e, gap in m.gaps.items()
        ),
        ("best possible accuracy, %", f"{100 * m.best_accuracy:.1f}"),
    ]
    smoothed = say("smoothed", "What label smoothing does, held out")
    return [
        Table(say("identities", "Logits as equations say"), ("what", "figure"), identities),
        Table(smoothed, ("data", "ε", *COLUMNS), rows),
    ]


def arms(m: Measured) -> list[tuple[str, float]]:
    """Return each pair of data and smoothing, in the order of the runs."""
    return list(dict.fromkeys((run.data, run.smoothing) for run in m.runs))


def values(m: Measured, data: str, smoothing: float, name: str) -> list[float]:
    """Return one figure of each seed of an arm."""
    return tools.column(tools.where(m.runs, data=data, smoothing=smoothing), name)


def draw(m: Measured) -> Figure:
    """The gap against its closed form, and what smoothing does to calibration and accuracy."""
    figure, (left, middle, right) = new_figure(9.6, 3.5, ncols=3)
    curve = [0.01 * step for step in range(1, 31)]
    left.plot(curve, [closed_gap(e, N_TOKENS) for e in curve], color=GREY, label="closed form")
    middle.axhline(0, color=GREY, ls="--", label="calibrated")
    right.axhline(100 * m.best_accuracy, color=GREY, ls="--", label="best possible")
    panels = (
        (left, "gap", 1, "logit gap where the next is sure", "How far the sure token stands out"),
        (middle, "excess", 100, "confidence less accuracy (points)", "Over- and under-confidence"),
        (right, "accuracy", 100, "right tokens, held out (%)", "Accuracy"),
    )
    for axis, name, factor, label, title in panels:
        for index, (data, kind) in enumerate(((PLENTY, "plenty of data"), (FEW, "few data"))):
            smoothings = [smoothing for arm, smoothing in arms(m) if arm == data]
            samples = [values(m, data, smoothing, name) for smoothing in smoothings]
            error_bars(axis, smoothings, samples, index, kind, factor)
        axis.set(title=title, xlabel="smoothing ε", ylabel=label)
        axis.legend()
    return figure


def judge(m: Measured) -> Verdict:
    """Are logits what the equations say, and are they so of the world as well?"""
    plain = _mean(m, PLENTY, 0.0, "slope")
    errors = {arm: _mean(m, *arm, "error") for arm in arms(m)}
    identities = max(tools.column(m.runs, "shared")) < 1e-3 and m.binary.difference < 1e-2
    meaning = abs(m.binary.slope - 1) < 0.05 and abs(plain - 1) < 0.1
    because = _because(m, errors)
    if not (identities and meaning):
        return Verdict("does not hold", because)
    conditions = _conditions(errors)
    if not conditions:
        return Verdict("holds", because)
    joined = Words.join(conditions, " and ")
    when = "Holds of the model's own probabilities; of the true ones, when there is {conditions}. "
    return Verdict("holds when", say("when", when, conditions=joined) + because)


def _mean(m: Measured, data: str, smoothing: float, name: str) -> float:
    return tools.mean(tools.where(m.runs, data=data, smoothing=smoothing), name)


def _conditions(errors: dict[tuple[str, float], float]) -> list[Words]:
    """List what takes logits half as far again from the truth as plenty of unsmoothed data."""
    limit, conditions = 1.5 * errors[PLENTY, 0.0], []
    if errors[FEW, 0.0] > limit:
        conditions.append(say("plenty", "plenty of data"))
    if max(errors[PLENTY, smoothing] for smoothing in SMOOTHINGS) > limit:
        conditions.append(say("unsmoothed", "no smoothing"))
    return conditions


def _because(m: Measured, errors: dict[tuple[str, float], float]) -> Words:
    smoothing = min(run.smoothing for run in m.runs if run.smoothing)
    four = [(data, e) for data in (PLENTY, FEW) for e in (0.0, smoothing)]
    return say(
        "because",
        "Logits - log p varies by {shared:.0e} over the classes; sigmoid and two-class softmax "
        "agree within {binary.difference:.0e}, and that logit is {binary.slope:.2f} times the "
        "log-odds. Logits are {error[0]:.2f} nats off the true log-probabilities (RMS), "
        "{error[1]:.2f} with ε = {smoothing:g} and {error[2]:.2f} with few data. Smoothed, "
        "the gap is {gap:.2f} (closed form {closed:.2f}; without it {loose[0]:.1f} halfway, "
        "{loose[1]:.1f} at the end). It takes the calibration error from {calibration[0]:.1f} to "
        "{calibration[1]:.1f}% with plenty of data, from {calibration[2]:.0f} to "
        "{calibration[3]:.0f}% with few, and accuracy from {right[0]:.1f} to {right[1]:.1f}% and "
        "from {right[2]:.1f} to {right[3]:.1f}%.",
        shared=max(tools.column(m.runs, "shared")),
        binary=m.binary,
        smoothing=smoothing,
        error=[errors[PLENTY, 0.0], errors[PLENTY, smoothing], errors[FEW, 0.0]],
        gap=_mean(m, *four[1], "gap"),
        closed=m.gaps[str(smoothing)],
        loose=[_mean(m, *four[0], name) for name in ("half_gap", "gap")],
        calibration=[100 * _mean(m, *arm, "calibration") for arm in four],
        right=[100 * _mean(m, *arm, "accuracy") for arm in four],
    )


LAB = say.make_lab(
    "What a logit is",
    claim=(
        "Softmax's logits are log-probabilities but for one constant that all classes share; the "
        "sigmoid's logit is the log-odds."
    ),
    experiment=(
        "Learn a language whose probabilities are known, and compare logits with true log-"
        "probabilities on held-out text: with plenty of data and with few, each with label "
        "smoothing 0, 0.1 and 0.2; the model, seeds, steps and learning rate are the same. Also "
        "fit a sigmoid and a two-class softmax to data of known log-odds."
    ),
    functions=(measure, tables, draw, judge),
)
