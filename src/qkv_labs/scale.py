"""Lab 1: why scores are divided by √d_k."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig
from qkv.inspect.draw import COLOURS, MARKERS, new_figure
from qkv.model import Attention, Encoder, Mask, scores, weights
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import exponent, fit, mean_and_spread, plus_minus, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
N_DRAWS, N_KEYS = 512, 64
D_MODEL, N_TOKENS, LENGTH, BATCH = 128, 16, 10, 32
TRAINED_WIDTHS, RATES = (8, 32, 128), (1e-3, 3e-3, 1e-2)
WITH, WITHOUT, SMALLER = "with 1/√d_k", "without", "without, smaller start"


@dataclass(frozen=True)
class Softmax:
    """What the softmax makes of q·k at one width, with or without 1/√d_k; means over draws."""

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
    """Runs of one arm at one learning rate, one figure a seed, of sequences it never saw."""

    d_k: int
    arm: str
    rate: float
    valid: list[float]  # share of right tokens, for choosing a rate
    test: list[float]  # the same of other sequences, for reporting


@dataclass(frozen=True)
class Measured:
    """Variances by the components' distribution, softmaxes by width, and training runs."""

    widths: list[int]
    variances: dict[str, list[float]]
    exponents: dict[str, float]
    softmaxes: list[Softmax]
    runs: list[Trained]


def measure(settings: Settings) -> Measured:
    """Draw, look at the softmax, then train."""
    generator = torch.Generator().manual_seed(settings.seed)
    settings.tell("drawing queries and keys")
    n_pairs = 40_000 if settings.full else 8_000
    drawn = {
        name: [variance(name, d_k, n_pairs, generator) for d_k in WIDTHS] for name in COMPONENTS
    }
    softmaxes = [
        look(d_k, scaled, N_DRAWS, generator) for d_k in WIDTHS for scaled in (True, False)
    ]
    return Measured(
        list(WIDTHS),
        drawn,
        {name: exponent(WIDTHS, found) for name, found in drawn.items()},
        softmaxes,
        list(trained(settings)),
    )


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def _even(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator) * 2 - 1) * math.sqrt(3)


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=generator) * 2.0 - 1


COMPONENTS = {"normal": _normal, "uniform": _even, "±1": _signs}  # each of mean 0 and variance 1


def variance(components: str, d_k: int, n_pairs: int, generator: torch.Generator) -> float:
    """Of q·k, over many pairs of a query and a key."""
    query, key = (COMPONENTS[components]((n_pairs, d_k), generator) for _ in range(2))
    return (query * key).sum(-1).var().item()


def look(d_k: int, scaled: bool, n_draws: int, generator: torch.Generator) -> Softmax:
    """Weights of many queries over keys of their own, and how much of a gradient passes them."""
    query = _normal((n_draws, 1, 1, d_k), generator).requires_grad_()
    key = _normal((n_draws, 1, N_KEYS, d_k), generator)
    arriving = _normal((n_draws, 1, 1, N_KEYS), generator)  # the loss's gradient by the weights
    inputs = scores(query, key, Mask(), d_k**-0.5 if scaled else 1.0, None)
    given = weights(inputs)
    by_score, by_query = torch.autograd.grad((given * arriving).sum(), (inputs, query))
    given = given.detach()
    norms = [gradient.flatten(1).norm(dim=1) for gradient in (by_score, by_query)]
    figures = [figure.item() for norm in norms for figure in (norm.median(), norm.mean())]
    entropy = -torch.xlogy(given, given).sum(-1).mean().item() / math.log(N_KEYS)
    return Softmax(d_k, scaled, entropy, given.amax(-1).mean().item(), *figures)


def trained(settings: Settings) -> Iterator[Trained]:
    """Train every arm at every rate, with the same seeds, batches and steps."""
    steps, n_seeds = (200, 5) if settings.full else (75, 3)
    for d_k in TRAINED_WIDTHS:
        for arm in (WITH, WITHOUT, SMALLER) if d_k == TRAINED_WIDTHS[-1] else (WITH, WITHOUT):
            settings.tell(f"training at d_k = {d_k}, {arm}")
            for rate in RATES:
                runs = [
                    train(d_k, arm, rate, settings.seed + seed, steps) for seed in range(n_seeds)
                ]
                yield Trained(d_k, arm, rate, [v for v, _ in runs], [t for _, t in runs])


def build(d_k: int, arm: str, seed: int) -> Encoder:
    """An encoder of as many heads as keep the number of weights the same at every width.

    A smaller start draws queries and keys d_k^¼ times smaller, so that the first scores are those
    of the scaled arm though nothing is divided, as T5 does.
    """
    config = ModelConfig(
        family="encoder",
        vocab_size=N_TOKENS,
        d_model=D_MODEL,
        n_heads=D_MODEL // d_k,
        d_ff=D_MODEL,
        n_encoder_layers=2,
        dropout=0.0,
        max_length=LENGTH,
        head="token",
        n_labels=N_TOKENS,
        score_division=arm == WITH,
    )
    with seeded(seed):
        model = Encoder(config)
    for module in model.modules():
        if arm == SMALLER and isinstance(module, Attention):
            module.query_key_value.weight.data[: 2 * D_MODEL] *= d_k**-0.25
    return model


def train(d_k: int, arm: str, rate: float, seed: int, steps: int) -> tuple[float, float]:
    """An encoder learns to reverse a sequence; its accuracy on two held-out sets.

    Each position has to find one other, so nothing is learnt unless attention is.
    """
    model = build(d_k, arm, seed)
    generator = torch.Generator().manual_seed(seed + 1_000)

    def loss(step: int) -> Tensor:
        tokens = torch.randint(N_TOKENS, (BATCH, LENGTH), generator=generator)
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())

    fit(model.parameters(), loss, steps, lr=rate)
    held_out = torch.randint(N_TOKENS, (2, 8 * BATCH, LENGTH), generator=generator)
    with torch.no_grad():
        right = [(model(one).argmax(-1) == one.flip(1)).float().mean().item() for one in held_out]
    return right[0], right[1]


def best(m: Measured, d_k: int, arm: str) -> Trained:
    """The arm's run at the rate that its validation set prefers."""
    runs = [run for run in m.runs if run.d_k == d_k and run.arm == arm]
    return max(runs, key=lambda run: fmean(run.valid))


def at_equal_rate(m: Measured, d_k: int) -> float:
    """What leaving the scale out costs at the rate that suits the scaled arm."""
    scaled = best(m, d_k, WITH)
    plain = next(
        run for run in m.runs if (run.d_k, run.arm, run.rate) == (d_k, WITHOUT, scaled.rate)
    )
    return fmean(scaled.test) - fmean(plain.test)


def _trained_widths(m: Measured) -> list[int]:
    return sorted({run.d_k for run in m.runs})


def _percent(run: Trained) -> str:
    return plus_minus([100 * share for share in run.test])


def tables(m: Measured) -> tuple[Table, ...]:
    """Variances, softmaxes, and accuracies."""
    names = list(m.variances)
    spread = [
        (str(d_k), *(f"{m.variances[name][index]:.1f}" for name in names))
        for index, d_k in enumerate(m.widths)
    ]
    spread.append(("exponent", *(f"{m.exponents[name]:.3f}" for name in names)))
    rows = [
        (
            str(s.d_k),
            WITH if s.scaled else WITHOUT,
            f"{s.entropy:.2f}",
            f"{s.largest:.2f}",
            f"{s.score_gradient:.2g}",
            f"{s.score_gradient_mean:.2g}",
            f"{s.query_gradient:.2g}",
            f"{s.query_gradient_mean:.2g}",
        )
        for s in m.softmaxes
    ]
    runs = [
        (
            str(run.d_k),
            run.arm,
            f"{run.rate:g}",
            _percent(run),
            "chosen" if run == best(m, run.d_k, run.arm) else "",
        )
        for run in m.runs
    ]
    return (
        Table(
            Words("Variance of q·k", "q·k 的方差"),
            ("d_k", *names),
            tuple(spread),
        ),
        Table(
            Words(f"The softmax over {N_KEYS} keys", f"在 {N_KEYS} 个键上的 softmax"),
            (
                "d_k",
                "scores",
                "entropy / log n",
                "largest weight",
                "gradient at scores (median)",
                "(mean)",
                "gradient at query (median)",
                "(mean)",
            ),
            tuple(rows),
        ),
        Table(
            Words("Reversing a sequence: right tokens, %", "把序列倒过来：正确词元的比例（%）"),
            ("d_k", "scores", "learning rate", "held-out accuracy", "by validation"),
            tuple(runs),
        ),
    )


def draw(m: Measured) -> Figure:
    """Variance, saturation, gradient and training, each against d_k."""
    figure, axes = new_figure(7.6, 6.0, nrows=2, ncols=2)
    (top_left, top_right), (low_left, low_right) = axes
    for index, (name, found) in enumerate(m.variances.items()):
        label = f"{name}: exponent {m.exponents[name]:.2f}"
        top_left.loglog(m.widths, found, MARKERS[index], color=COLOURS[index], label=label)
    top_left.loglog(m.widths, m.widths, color="#999999", zorder=0, label="d_k")
    power = fmean(m.exponents.values())
    top_left.set(title=f"Var(q·k) grows as d_k^{power:.2f}", ylabel="variance of q·k")
    for index, arm in enumerate((WITH, WITHOUT)):
        look: dict[str, Any] = {"color": COLOURS[index], "marker": MARKERS[index]}
        found_here = [s for s in m.softmaxes if s.scaled == (arm == WITH)]
        sizes = [s.d_k for s in found_here]
        top_right.semilogx(sizes, [s.largest for s in found_here], label=arm, **look)
        low_left.loglog(
            sizes, [s.query_gradient for s in found_here], label=f"{arm}: median", **look
        )
        mean = [s.query_gradient_mean for s in found_here]
        low_left.loglog(sizes, mean, label=f"{arm}: mean", ls=":", mfc="none", **look)
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
        widths = [
            d_k for d_k in _trained_widths(m) if any((r.d_k, r.arm) == (d_k, arm) for r in m.runs)
        ]
        runs = [mean_and_spread([100 * t for t in best(m, d_k, arm).test]) for d_k in widths]
        axis.errorbar(
            widths,
            *zip(*runs, strict=True),
            label=arm,
            capsize=3,
            color=COLOURS[index],
            marker=MARKERS[index],
        )
    axis.set(
        title="Training, each arm at its best rate",
        ylabel="right tokens, held out (%)",
        ylim=(0, 103),
        xscale="log",
    )
    axis.set_xticks(_trained_widths(m), [str(d_k) for d_k in _trained_widths(m)])
    axis.minorticks_off()
    axis.axhline(100 / N_TOKENS, color="#999999", ls="--", label="guessing")


def judge(m: Measured) -> Verdict:
    """Does the variance grow as d_k, the softmax saturate, its gradient vanish, training suffer?"""
    straight = all(abs(value - 1) < 0.05 for value in m.exponents.values())
    first, last = m.widths[0], m.widths[-1]
    at = {(s.d_k, s.scaled): s for s in m.softmaxes}
    # most of the weight on one of the keys, where with the scale it stays spread
    saturates = at[last, False].largest > 0.8 and at[last, True].largest < 0.3
    # vanishing: more than ten times smaller, where with the scale it is not
    falls = at[first, False].score_gradient / max(at[last, False].score_gradient, 1e-30)
    stays = at[first, True].score_gradient / max(at[last, True].score_gradient, 1e-30)
    widths = _trained_widths(m)
    hurt = [d_k for d_k in widths if _is_worse(m, d_k)]
    because = _because(m, at[last, False], at[last, True], falls)
    if not (straight and saturates and falls > 10 > stays and widths[-1] in hurt):
        return Verdict("does not hold", because)
    when = _when(hurt, widths, _recovers(m, widths[-1]))
    if not when.en:
        return Verdict("holds", because)
    return Verdict("holds when", Words(when.en + because.en, when.zh + because.zh))


def _when(hurt: list[int], widths: list[int], recovers: bool) -> Words:
    """The conditions that showed up, as sentences before the reasons."""
    en, zh = [], []
    if hurt != widths:
        named = ", ".join(map(str, hurt))
        en.append(f"Holds when heads are wide: training suffers at d_k = {named} alone. ")
        zh.append(f"头足够宽才成立：只有 d_k = {named.replace(', ', '、')} 时训练变差。")
    if recovers:
        en.append("Holds when the first weights of queries and keys do not make up for the scale. ")
        zh.append("q、k 的初始权重没有相应缩小时才成立。")
    return Words("".join(en), "".join(zh))


def _is_worse(m: Measured, d_k: int) -> bool:
    """Whether leaving the scale out costs clearly more than the seeds' spread, and 5 points."""
    scaled, spread = mean_and_spread(best(m, d_k, WITH).test)
    plain, other = mean_and_spread(best(m, d_k, WITHOUT).test)
    return scaled - plain > max(0.05, 2 * math.hypot(spread, other))


def _recovers(m: Measured, d_k: int) -> bool:
    """Whether a smaller start wins back more than half of what leaving the scale out costs."""
    scaled, plain, smaller = (fmean(best(m, d_k, arm).test) for arm in (WITH, WITHOUT, SMALLER))
    return smaller - plain > (scaled - plain) / 2


def _because(m: Measured, plain: Softmax, scaled: Softmax, falls: float) -> Words:
    widths = _trained_widths(m)
    pairs = "; ".join(
        f"d_k = {d_k}: {_percent(best(m, d_k, WITH))} / {_percent(best(m, d_k, WITHOUT))}"
        for d_k in widths
    )
    told = pairs.replace("; ", "；").replace(": ", " 时 ")
    smaller = _percent(best(m, widths[-1], SMALLER))
    gap = 100 * at_equal_rate(m, widths[-1])
    power = fmean(m.exponents.values())
    times = plain.query_gradient_mean / scaled.query_gradient_mean
    uneven = falls > 10 and times > 1
    jumps = ": most queries stop learning while a few jump" if uneven else ""
    jumps_zh = "：多数查询学不动，少数查询跳得过猛" if uneven else ""
    return Words(
        f"Right tokens with / without the scale, each arm at its best rate, %: {pairs} (at equal "
        f"rate {gap:.0f} points apart at d_k = {widths[-1]}); queries and keys that start d_k^¼ "
        f"times smaller reach {smaller} there without any scale. Var(q·k) grows as "
        f"d_k^{power:.2f}, and at d_k = {plain.d_k} the largest weight is {plain.largest:.2f} "
        f"without the scale and {scaled.largest:.2f} with it; the median gradient at the scores is "
        f"{falls:,.0f} times smaller than at d_k = {m.widths[0]}, and the mean at the query is "
        f"{times:.1f} times the scaled arm's{jumps}.",
        f"缩放／不缩放的正确率（各取最合适的学习率，%）：{told}（学习率相同时，"
        f"d_k = {widths[-1]} 相差 {gap:.0f} 个百分点）；若 q、k 的初始权重缩小到 d_k^¼ 分之一，"
        f"不缩放时的正确率为 {smaller}。"
        f"q·k 的方差按 d_k 的 {power:.2f} 次方增长；d_k = {plain.d_k} 时，最大权重不缩放为 "
        f"{plain.largest:.2f}，缩放为 {scaled.largest:.2f}。分数处梯度的中位数降到 d_k = "
        f"{m.widths[0]} 时的 {falls:,.0f} 分之一，查询处梯度的均值则是缩放组的 {times:.1f} 倍"
        f"{jumps_zh}。",
    )


LAB = Lab(
    number=1,
    name="scale",
    title=Words("Why scores are divided by √d_k", "分数为什么要除以 √d_k"),
    claim=Words(
        "The variance of q·k grows with the width of a head. Left alone, large scores push the "
        "softmax to one-hot, its gradient vanishes, and training suffers; dividing by √d_k keeps "
        "the variance at 1 and prevents this.",
        "头越宽，q·k 的方差越大；若不处理，过大的分数会把 softmax 推向 one-hot，梯度消失，"
        "训练变难。除以 √d_k 能让方差保持为 1，从而避免这一切。",
    ),
    experiment=Words(
        "Draw queries and keys of independent components of three distributions, fit the growth of "
        "the variance, and look at the softmax's weights and gradient. Then train the same encoder "
        "to reverse sequences with and without the scale: same weights, seeds, batches and steps, "
        "and the same three learning rates for each arm to choose from on validation data. A third "
        "arm has no scale but smaller first weights.",
        "按三种分布抽取分量独立的查询和键，拟合方差的增长，并观察 softmax 的权重与梯度。再训练"
        "同一个编码器把序列倒过来：有无缩放两组的参数量、种子、批次和步数都相同，各自从同样三个学习"
        "率中按验证集挑选。另设一组对照：不缩放，但初始权重更小。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
