"""Lab 14: what self-attention costs, and when: O(n²·d) against O(n·d²).

n tokens, d = d_model; the feed-forward layer is 4·d wide, as in the paper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.config import ModelConfig
from qkv.model import Attend, Attention, FeedForward, Mask, equation, fast
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, look, new_figure, ticks
from qkv_labs.lab import Comparison, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("cost")

CORE, PROJECTIONS, FEED_FORWARD, RECURRENT = "attention", "projections", "feed-forward", "recurrent"
PARTS = (CORE, PROJECTIONS, FEED_FORWARD, RECURRENT)
FUSED = "attention, fused"
TIMED = (*PARTS, FUSED)  # FLOPs are those of the equation; in practice a fused kernel runs
EXPECTED = {CORE: (2, 1), PROJECTIONS: (1, 2), FEED_FORWARD: (1, 2), RECURRENT: (1, 2)}  # in n, d
LENGTHS, WIDTHS = (64, 128, 256, 512, 1024, 2048), (64, 128, 256, 512, 1024)
LONG = 256  # times are fitted from here on: below, calls cost more than their arithmetic
D_MODEL, LENGTH, N_HEADS = 128, 256, 4  # d while n grows, n while d grows
COUNTED_WIDTHS = (64, 512, 4096)  # where crossings are counted; nothing is computed there


@dataclass(frozen=True)
class Measured:
    """Costs of each part by n at a fixed d and by d at a fixed n."""

    d_model: int  # fixed while n grows
    length: int  # fixed while d grows
    lengths: list[int]
    widths: list[int]
    flops_by_length: dict[str, list[int]]
    flops_by_width: dict[str, list[int]]
    seconds_by_length: dict[str, list[float]]
    seconds_by_width: dict[str, list[float]]
    memory: dict[str, list[int]]  # bytes kept for the backward pass
    crossings: dict[str, list[float]]  # n/d from which attention takes more FLOPs than each part
    layer_crossings: list[float]  # n/d from which it takes more than the rest of a block


def measure(settings: Settings) -> Measured:
    """Count on tensors without data, then time and weigh real ones."""
    repeats = settings.pick(5, 9)
    settings.tell("counting floating-point operations")
    flops_by_length = {part: [flops(part, n, D_MODEL) for n in LENGTHS] for part in PARTS}
    flops_by_width = {part: [flops(part, LENGTH, d) for d in WIDTHS] for part in PARTS}
    settings.tell("timing")
    by_length = {part: [seconds(part, n, D_MODEL, repeats) for n in LENGTHS] for part in TIMED}
    by_width = {part: [seconds(part, LENGTH, d, repeats) for d in WIDTHS] for part in TIMED}
    settings.tell("weighing what is kept for the backward pass")
    return Measured(
        D_MODEL,
        LENGTH,
        list(LENGTHS),
        list(WIDTHS),
        flops_by_length,
        flops_by_width,
        by_length,
        by_width,
        {part: [kept_bytes(part, n, D_MODEL) for n in LENGTHS] for part in TIMED},
        {part: [crossing(d, (part,)) for d in COUNTED_WIDTHS] for part in PARTS[1:]},
        [crossing(d, (PROJECTIONS, FEED_FORWARD)) for d in COUNTED_WIDTHS],
    )


def prepare(part: str, n: int, d: int, device: str = "cpu") -> tuple[Callable[[], Any], nn.Module]:
    """Return a call that does one part's work on n tokens of width d, and its module."""
    config = ModelConfig(d_model=d, n_heads=N_HEADS, d_ff=4 * d, dropout=0.0)
    with torch.device(device), tools.seeded(0):
        x = torch.randn(1, n, d).requires_grad_()
        heads = [torch.randn(1, N_HEADS, n, d // N_HEADS).requires_grad_() for _ in range(3)]
        if part in (CORE, FUSED):
            attend: Attend = equation if part == CORE else fast
            query, key, value = heads
            return lambda: attend(query, key, value, Mask(), config.score_scale), nn.Identity()
        if part == PROJECTIONS:
            attention = Attention(config)
            return lambda: (attention.query_key_value(x), attention.output(x)), attention
        module = nn.RNN(d, d, batch_first=True) if part == RECURRENT else FeedForward(config)
        return lambda: module(x), module


def flops(part: str, n: int, d: int) -> int:
    """Count the floating-point operations of the products without computing them."""
    work, _ = prepare(part, n, d, "meta")
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def crossing(d: int, others: Sequence[str]) -> float:
    """Return n/d at which attention takes as many FLOPs as other parts together.

    Its FLOPs grow as n² and those of the others as n, so that one token's counts serve for all.
    """
    return sum(flops(part, 1, d) for part in others) / flops(CORE, 1, d) / d


@torch.no_grad()
def seconds(part: str, n: int, d: int, repeats: int) -> float:
    """Return CPU seconds of one call: the least of several, since disturbances only add."""
    work, _ = prepare(part, n, d)
    work()
    times = []
    for _ in range(repeats):
        calls, begin = 0, time.process_time()
        while (spent := time.process_time() - begin) < 0.01:
            work()
            calls += 1
        times.append(spent / calls)
    return min(times)


def kept_bytes(part: str, n: int, d: int) -> int:
    """Count the bytes that a forward pass keeps for the backward pass, without weights."""
    work, module = prepare(part, n, d)
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _alive = work()  # held, so that no address is used twice
    return sum(kept.values())


def met(sizes: Sequence[int], rising: Sequence[float], other: Sequence[float]) -> float | None:
    """Interpolate the size from which `rising` costs more; None: it never does."""
    gaps = [math.log(a / b) for a, b in zip(rising, other, strict=True)]
    if gaps[0] >= 0:
        return float(sizes[0])
    for index in range(1, len(sizes)):
        if gaps[index] >= 0:
            share = -gaps[index - 1] / (gaps[index] - gaps[index - 1])
            return float(sizes[index - 1] * (sizes[index] / sizes[index - 1]) ** share)
    return None


def long_exponent(m: Measured, costs: Sequence[float]) -> float:
    """Return how a cost grows with n over long sequences."""
    long = [(n, cost) for n, cost in zip(m.lengths, costs, strict=True) if n >= LONG]
    return tools.exponent(*zip(*long, strict=True))


def flop_exponents(m: Measured, part: str) -> tuple[float, float]:
    """Return how a part's operations grow with n and with d."""
    by_length, by_width = m.flops_by_length[part], m.flops_by_width[part]
    return tools.exponent(m.lengths, by_length), tools.exponent(m.widths, by_width)


def tables(m: Measured) -> list[Table]:
    """Exponents, crossings and times."""
    exponents = []
    for part in TIMED:
        counted = [f"{x:.2f}" for x in flop_exponents(m, part)] if part != FUSED else ["–", "–"]
        measured = (
            long_exponent(m, m.seconds_by_length[part]),
            tools.exponent(m.widths, m.seconds_by_width[part]),
            long_exponent(m, m.memory[part]),
        )
        exponents.append((part, *counted, *(f"{value:.2f}" for value in measured)))
    fused = m.seconds_by_length[FUSED]
    crossings = [
        (
            part,
            *(f"{ratio:.2f}·d" for ratio in m.crossings[part]),
            _length(m, met(m.lengths, fused, m.seconds_by_length[part])),
        )
        for part in PARTS[1:]
    ]
    crossings.append(("all else in a block", *(f"{r:.2f}·d" for r in m.layer_crossings), "–"))
    times = [
        (str(n), *(f"{1e3 * m.seconds_by_length[part][index]:.3f}" for part in TIMED))
        for index, n in enumerate(m.lengths)
    ]
    costs = ("FLOPs in n", "FLOPs in d", "time in n", "time in d", "memory in n")
    counted_at = [f"FLOPs, d = {d}" for d in COUNTED_WIDTHS]
    return [
        say.table("exponents", ("part", *costs), exponents),
        say.table("crossings", ("than", *counted_at, f"time, fused, d = {m.d_model}"), crossings),
        say.table("times", ("n", *TIMED), times, m=m),
    ]


def _length(m: Measured, n: float | None) -> str:
    if n is None:
        return f"> {m.lengths[-1]}"
    return f"≤ {m.lengths[0]}" if n <= m.lengths[0] else f"{n:.0f}"


def draw(m: Measured) -> Figure:
    """Operations, time, and which part does most of a block's work."""
    figure, (left, middle, right) = new_figure(9.6, 3.6, ncols=3)
    for index, part in enumerate(TIMED):
        style = look(index, label=part)
        if part != FUSED:
            left.loglog(m.lengths, m.flops_by_length[part], **style)
        middle.loglog(m.lengths, [1e3 * value for value in m.seconds_by_length[part]], **style)
    powers = [flop_exponents(m, part)[0] for part in (CORE, RECURRENT)]
    title = f"Counted: attention n^{powers[0]:.2f}, recurrent n^{powers[1]:.2f}"
    left.set(title=title, ylabel="FLOPs")
    middle.set(title=f"Timed, d = {m.d_model}", ylabel="CPU time, one core (ms)")
    for axis in (left, middle):
        axis.set_xlabel("n (tokens)")
        axis.legend()
    _draw_shares(right, m)
    return figure


def _draw_shares(axis: Any, m: Measured) -> None:
    """Draw each part's share of a block's work, named where its area is high."""
    block = [m.flops_by_length[part] for part in PARTS[:3]]
    shares = [[100 * cost / sum(costs) for cost in costs] for costs in zip(*block, strict=True)]
    ratios = [n / m.d_model for n in m.lengths]
    axis.stackplot(ratios, *zip(*shares, strict=True), colors=COLOURS[:3], alpha=0.8)
    style = {"color": "white", "fontweight": "bold", "ha": "center", "va": "center"}
    for index, part in enumerate(PARTS[:3]):
        at = max(range(1, len(ratios) - 1), key=lambda at: shares[at][index])
        axis.text(ratios[at], sum(shares[at][:index]) + shares[at][index] / 2, part, **style)
    axis.set_title(f"Attention leads from n = {m.crossings[FEED_FORWARD][-1]:.1f}·d")
    axis.set(xlabel="n / d", ylabel="share of a block's FLOPs (%)", xscale="log")
    axis.set(ylim=(0, 100), xlim=(ratios[0], ratios[-1]))
    ticks(axis, ratios)


def judge(m: Measured) -> Verdict:
    """Are the exponents those of the claim, is attention dearer, and is it faster in practice?"""
    pairs = zip(m.seconds_by_length[FUSED], m.seconds_by_length[PROJECTIONS], strict=True)
    layer = [1000 * (core + projections) for core, projections in pairs]
    recurrent = [1000 * seconds for seconds in m.seconds_by_length[RECURRENT]]
    core, net = ([n / 1e6 for n in m.flops_by_length[part]] for part in (CORE, RECURRENT))
    short, long = (f"n = {n}, d = {m.d_model}:" for n in (m.lengths[0], m.lengths[-1]))

    def power(part: str, axis: int) -> Comparison:
        value, expected = flop_exponents(m, part)[axis], EXPECTED[part][axis]
        return compare(value, "≈", expected, f"{part}, {'nd'[axis]}:", 0.05, ".2f")

    return say.verdict(
        orders=[power(part, axis) for part in (CORE, RECURRENT) for axis in (0, 1)],
        dearer_long=compare(core[-1], ">", net[-1], long),
        dearer_short=compare(core[0], ">", net[0], short),
        faster_short=compare(layer[0], "<", recurrent[0], short, form=".2f"),
        faster_long=compare(layer[-1], "<", recurrent[-1], long, form=".2f"),
        memory=[
            compare(long_exponent(m, m.memory[part]), "≈", 2, part, 0.1, ".2f")
            for part in (CORE, FUSED)
        ],
    )


LAB = say.make_lab(measure, tables, draw, judge)
