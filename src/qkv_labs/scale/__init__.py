"""Lab 1: why scores are divided by √d_k."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from qkv.model import Attention, Encoder, Mask, scores, weights
from qkv_labs import tools
from qkv_labs.figures import GREY, Figure, error_bars, look, new_figure, ticks
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("scale")

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
N_DRAWS, N_KEYS = 512, 64
D_MODEL, N_TOKENS, LENGTH, BATCH = 128, 16, 10, 32
TRAINED_WIDTHS, RATES = (8, 32, 128), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
WITH, WITHOUT, SMALLER = "with 1/√d_k", "without", "without, smaller start"


@dataclass(frozen=True)
class Softmax:
    """The softmax of q·k at one width, with or without 1/√d_k; means over draws."""

    d_k: int
    scaled: bool
    entropy: float  # as a share of the largest possible, log n
    largest: float  # the largest weight
    score_gradient: float  # norm of the gradient by the softmax's input: median
    score_gradient_mean: float
    query_gradient: float  # and by the query, through the scale and the keys: median
    query_gradient_mean: float


@dataclass(frozen=True)
class Trained:
    """Accuracy of one arm at one learning rate on unseen sequences, one value a seed."""

    d_k: int
    arm: str
    rate: float
    valid: list[float]  # share of right tokens, for choosing a rate
    test: list[float]  # on other sequences, for reporting


@dataclass(frozen=True)
class Measured:
    """Variances by the components' distribution, softmaxes by width, and training runs."""

    widths: list[int]
    variances: dict[str, list[float]]
    exponents: dict[str, float]
    softmaxes: list[Softmax]
    runs: list[Trained]


def measure(settings: Settings) -> Measured:
    """Draw queries and keys, look at the softmax, then train."""
    generator = torch.Generator().manual_seed(settings.seed)
    settings.tell("drawing queries and keys")
    n_pairs = settings.pick(8_000, 40_000)
    variances = {
        name: [variance(name, d_k, n_pairs, generator) for d_k in WIDTHS] for name in COMPONENTS
    }
    softmaxes = [
        softmax(d_k, scaled, N_DRAWS, generator) for d_k in WIDTHS for scaled in (True, False)
    ]
    exponents = {name: tools.exponent(WIDTHS, values) for name, values in variances.items()}
    return Measured(list(WIDTHS), variances, exponents, softmaxes, list(trained(settings)))


Shape = tuple[int, ...]
COMPONENTS: dict[str, Callable[[Shape, torch.Generator], Tensor]] = {  # mean 0 and variance 1
    "normal": lambda shape, draws: torch.randn(shape, generator=draws),
    "uniform": lambda shape, draws: (torch.rand(shape, generator=draws) * 2 - 1) * math.sqrt(3),
    "±1": lambda shape, draws: torch.randint(2, shape, generator=draws) * 2.0 - 1,
}


def variance(components: str, d_k: int, n_pairs: int, generator: torch.Generator) -> float:
    """Variance of q·k over many pairs of a query and a key."""
    query, key = (COMPONENTS[components]((n_pairs, d_k), generator) for _ in range(2))
    return (query * key).sum(-1).var().item()


def softmax(d_k: int, scaled: bool, n_draws: int, generator: torch.Generator) -> Softmax:
    """Measure attention weights of random queries and keys, and the gradient that passes them."""
    query = torch.randn(n_draws, 1, 1, d_k, generator=generator).requires_grad_()
    key = torch.randn(n_draws, 1, N_KEYS, d_k, generator=generator)
    # the loss's gradient by the weights
    arriving = torch.randn(n_draws, 1, 1, N_KEYS, generator=generator)
    inputs = scores(query, key, Mask(), d_k**-0.5 if scaled else 1.0, None)
    p = weights(inputs)
    by_score, by_query = torch.autograd.grad((p * arriving).sum(), (inputs, query))
    p = p.detach()
    norms = [gradient.flatten(1).norm(dim=1) for gradient in (by_score, by_query)]
    gradients = [value.item() for norm in norms for value in (norm.median(), norm.mean())]
    entropy = -torch.xlogy(p, p).sum(-1).mean().item() / math.log(N_KEYS)
    return Softmax(d_k, scaled, entropy, p.amax(-1).mean().item(), *gradients)


def trained(settings: Settings) -> Iterator[Trained]:
    """Train every arm at every rate, with the same seeds, batches and steps."""
    for d_k in TRAINED_WIDTHS:
        for arm in (WITH, WITHOUT, SMALLER) if d_k == TRAINED_WIDTHS[-1] else (WITH, WITHOUT):
            settings.tell(f"training at d_k = {d_k}, {arm}")
            for rate in RATES:
                steps, seeds = settings.pick(75, 200), settings.seeds(3, 5)
                runs = [train(d_k, arm, rate, seed, steps) for seed in seeds]
                yield Trained(d_k, arm, rate, [v for v, _ in runs], [t for _, t in runs])


def build(d_k: int, arm: str, seed: int) -> Encoder:
    """Build an encoder with as many heads as keep the number of weights the same at every width.

    A smaller start draws queries and keys d_k^¼ times smaller, so that the first scores are those
    of the scaled arm though nothing is divided, as T5 does.
    """
    settings: dict[str, Any] = {
        "n_heads": D_MODEL // d_k,
        "d_ff": D_MODEL,
        "norm_position": "post",
        "score_division": arm == WITH,
    }
    model = tools.encoder(
        N_TOKENS, D_MODEL, 2, seed, n_labels=N_TOKENS, max_length=LENGTH, **settings
    )
    for module in model.modules():
        if arm == SMALLER and isinstance(module, Attention):
            module.query_key_value.weight.data[: 2 * D_MODEL] *= d_k**-0.25
    return model


def train(d_k: int, arm: str, rate: float, seed: int, steps: int) -> tuple[float, float]:
    """Train an encoder to reverse a sequence; return its accuracy on two held-out sets.

    Each position has to find one other, so nothing is learnt unless attention is.
    """
    model = build(d_k, arm, seed)
    generator = torch.Generator().manual_seed(seed + 1_000)

    def loss(step: int) -> Tensor:
        tokens = torch.randint(N_TOKENS, (BATCH, LENGTH), generator=generator)
        return tools.token_loss(model(tokens), tokens.flip(1))

    tools.fit(model, loss, steps, lr=rate)
    valid, test = torch.randint(N_TOKENS, (2, 8 * BATCH, LENGTH), generator=generator)

    @torch.no_grad()
    def accuracy(tokens: Tensor) -> float:
        return (model(tokens).argmax(-1) == tokens.flip(1)).float().mean().item()

    return accuracy(valid), accuracy(test)


def best(m: Measured, d_k: int, arm: str) -> Trained:
    """Return the arm's run at the rate that its validation set prefers."""
    return max(tools.where(m.runs, d_k=d_k, arm=arm), key=lambda run: fmean(run.valid))


def _trained_widths(m: Measured) -> list[int]:
    return sorted({run.d_k for run in m.runs})


def tables(m: Measured) -> list[Table]:
    """Variances, softmaxes, and accuracies."""
    names = list(m.variances)
    variances = [
        (str(d_k), *(f"{m.variances[name][index]:.1f}" for name in names))
        for index, d_k in enumerate(m.widths)
    ]
    variances.append(("exponent", *(f"{m.exponents[name]:.3f}" for name in names)))
    softmaxes = [
        (
            str(s.d_k),
            WITH if s.scaled else WITHOUT,
            *(f"{value:.2f}" for value in (s.entropy, s.largest)),
            *(f"{value:.2g}" for value in (s.score_gradient, s.score_gradient_mean)),
            *(f"{value:.2g}" for value in (s.query_gradient, s.query_gradient_mean)),
        )
        for s in m.softmaxes
    ]
    softmax_head = (
        *("d_k", "scores", "entropy / log n", "largest weight"),
        *("gradient at scores (median)", "(mean)", "gradient at query (median)", "(mean)"),
    )
    runs = {
        "d_k": "{0.d_k}",
        "scores": "{0.arm}",
        "learning rate": "{0.rate:g}",
        "held-out accuracy": lambda run: tools.percent(run.test),
        "by validation": lambda run: "chosen" if run == best(m, run.d_k, run.arm) else "",
    }
    return [
        say.table("variances", ("d_k", *names), variances),
        say.table("softmaxes", softmax_head, softmaxes, n=N_KEYS),
        say.table("runs", runs, m.runs),
    ]


def draw(m: Measured) -> Figure:
    """Variance, saturation, gradient and training, each against d_k."""
    figure, axes = new_figure(7.6, 6.0, nrows=2, ncols=2)
    (top_left, top_right), (low_left, low_right) = axes
    for index, (name, values) in enumerate(m.variances.items()):
        label = f"{name}: exponent {m.exponents[name]:.2f}"
        top_left.loglog(m.widths, values, ls="none", label=label, **look(index))
    top_left.loglog(m.widths, m.widths, color=GREY, zorder=0, label="d_k")
    power = fmean(m.exponents.values())
    top_left.set(title=f"Var(q·k) grows as d_k^{power:.2f}", ylabel="variance of q·k")
    for index, arm in enumerate((WITH, WITHOUT)):
        softmaxes = tools.where(m.softmaxes, scaled=arm == WITH)
        sizes, style = [s.d_k for s in softmaxes], look(index)
        top_right.semilogx(sizes, [s.largest for s in softmaxes], label=arm, **style)
        median, mean = (
            [getattr(s, f"query_gradient{of}") for s in softmaxes] for of in ("", "_mean")
        )
        low_left.loglog(sizes, median, label=f"{arm}: median", **style)
        low_left.loglog(sizes, mean, label=f"{arm}: mean", ls=":", mfc="none", **style)
    title = f"How much the likeliest of {N_KEYS} keys gets"
    top_right.set(title=title, ylabel="largest weight", ylim=(0, 1))
    low_left.set(title="What gradient a query gets", ylabel="norm of the gradient at the query")
    _draw_training(low_right, m)
    for axis in axes.flat:
        axis.set_xlabel("d_k")
        axis.legend()
    return figure


def _draw_training(axis: Any, m: Measured) -> None:
    for index, arm in enumerate((WITH, WITHOUT, SMALLER)):
        widths = [d_k for d_k in _trained_widths(m) if tools.where(m.runs, d_k=d_k, arm=arm)]
        error_bars(axis, widths, [best(m, d_k, arm).test for d_k in widths], index, arm, 100)
    title, label = "Training, each arm at its best rate", "right tokens, held out (%)"
    axis.set(title=title, ylabel=label, ylim=(0, 103), xscale="log")
    ticks(axis, _trained_widths(m))
    axis.axhline(100 / N_TOKENS, color=GREY, ls="--", label="guessing")


def judge(m: Measured) -> Verdict:
    """Does the variance grow as d_k, the softmax saturate, its gradient vanish, training suffer?"""
    first, last = m.widths[0], m.widths[-1]
    at = {(s.d_k, s.scaled): s for s in m.softmaxes}
    plain, scaled, narrow = at[last, False], at[last, True], at[first, False]
    widths = _trained_widths(m)

    def reached(d_k: int, arm: str) -> Interval:
        return Interval.percent(best(m, d_k, arm).test, 100)

    exponent = Interval.of(list(m.exponents.values()))
    tenth = f"d_k = {last}", f"0.1 · (d_k = {first})"
    means = Figures({WITHOUT: plain.query_gradient_mean, WITH: scaled.query_gradient_mean})
    widest = Figures({arm: reached(widths[-1], arm) for arm in (SMALLER, WITH)})
    return say.verdict(
        {"last": last, "first": first},
        grows=compare(exponent, "≈", 1, "exponent", margin=0.05, form=".3f"),
        one_hot=[
            compare(plain.largest, ">", 0.9, WITHOUT, form=".2f"),
            compare(scaled.largest, "<", 0.5, WITH, form=".2f"),
        ],
        vanishes=compare(plain.score_gradient, "<", 0.1 * narrow.score_gradient, tenth, form=".2g"),
        mean=means.compare(WITHOUT, "<", WITH, form=".2g"),
        trains=[
            compare(reached(d_k, WITHOUT), "<", reached(d_k, WITH), f"d_k = {d_k}")
            for d_k in widths
        ],
        only=widest.compare(SMALLER, "<", WITH),
    )


LAB = say.make_lab(measure, tables, draw, judge)
