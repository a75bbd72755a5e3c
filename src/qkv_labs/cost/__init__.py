"""Lab 14: what self-attention costs, and when: O(n²·d) against O(n·d²).

n tokens, d = d_model; the feed-forward layer is 4·d wide, as in the paper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.config import ModelConfig
from qkv.inspect.style import COLOURS, MARKERS, new_figure
from qkv.model import Attention, FeedForward, Mask, equation, fast
from qkv.model.attention import Attend
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import exponent, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    d_model, length, repeats = D_MODEL, LENGTH, 9 if settings.full else 5
    settings.tell("counting floating-point operations")
    counted = {part: [flops(part, n, d_model) for n in LENGTHS] for part in PARTS}
    widened = {part: [flops(part, length, d) for d in WIDTHS] for part in PARTS}
    settings.tell("timing")
    long = {part: [seconds(part, n, d_model, repeats) for n in LENGTHS] for part in TIMED}
    wide = {part: [seconds(part, length, d, repeats) for d in WIDTHS] for part in TIMED}
    settings.tell("weighing what is kept for the backward pass")
    weighed = {part: [kept_bytes(part, n, d_model) for n in LENGTHS] for part in TIMED}
    return Measured(
        d_model,
        length,
        list(LENGTHS),
        list(WIDTHS),
        counted,
        widened,
        long,
        wide,
        weighed,
        {part: [crossing(d, (part,)) for d in COUNTED_WIDTHS] for part in PARTS[1:]},
        [crossing(d, (PROJECTIONS, FEED_FORWARD)) for d in COUNTED_WIDTHS],
    )


def prepare(part: str, n: int, d: int, device: str = "cpu") -> tuple[Callable[[], Any], nn.Module]:
    """A call that does one part's work on n tokens of width d, and the module that does it."""
    config = ModelConfig(d_model=d, n_heads=N_HEADS, d_ff=4 * d, dropout=0.0)
    with torch.device(device), seeded(0):
        x = torch.randn(1, n, d).requires_grad_()
        heads = [torch.randn(1, N_HEADS, n, d // N_HEADS).requires_grad_() for _ in range(3)]
        modules = {PROJECTIONS: Attention, FEED_FORWARD: FeedForward}
        if part in (CORE, FUSED):
            attend: Attend = equation if part == CORE else fast
            query, key, value = heads
            return lambda: attend(query, key, value, Mask(), config.score_scale), nn.Identity()
        if part == RECURRENT:
            recurrent = nn.RNN(d, d, batch_first=True)
            return lambda: recurrent(x), recurrent
        module = modules[part](config)
        if isinstance(module, Attention):
            return lambda: (module.query_key_value(x), module.output(x)), module
        return lambda: module(x), module


def flops(part: str, n: int, d: int) -> int:
    """Floating-point operations of the products, counted without computing them."""
    work, _ = prepare(part, n, d, "meta")
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def crossing(d: int, others: Sequence[str]) -> float:
    """n/d at which attention takes as many FLOPs as others together, by halving an interval.

    The others treat each token alike, so that one token's count serves for all.
    """
    a_token = sum(flops(part, 1, d) for part in others)
    low, high = 1, 64 * d
    while high - low > 1:
        middle = (low + high) // 2
        more = flops(CORE, middle, d) >= middle * a_token
        low, high = (low, middle) if more else (middle, high)
    return high / d


@torch.no_grad()
def seconds(part: str, n: int, d: int, repeats: int) -> float:
    """CPU seconds of one call: the least of several, since whatever disturbs only adds."""
    work, _ = prepare(part, n, d)
    work()
    found = []
    for _ in range(repeats):
        calls, begin = 0, time.process_time()
        while (spent := time.process_time() - begin) < 0.01:
            work()
            calls += 1
        found.append(spent / calls)
    return min(found)


def kept_bytes(part: str, n: int, d: int) -> int:
    """What a forward pass keeps for the backward pass, weights not counted."""
    work, module = prepare(part, n, d)
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _alive = work()  # held, so that no storage's place is used twice
    return sum(kept.values())


def met(sizes: Sequence[int], rising: Sequence[float], other: Sequence[float]) -> float | None:
    """The size from which `rising` costs more, between two that were tried; None: it never does."""
    gaps = [math.log(a / b) for a, b in zip(rising, other, strict=True)]
    if gaps[0] >= 0:
        return float(sizes[0])
    for index in range(1, len(sizes)):
        if gaps[index] >= 0:
            share = -gaps[index - 1] / (gaps[index] - gaps[index - 1])
            return float(sizes[index - 1] * (sizes[index] / sizes[index - 1]) ** share)
    return None


def time_exponents(m: Measured, part: str) -> tuple[float, float]:
    """How a part's time grows with n, over long sequences, and with d."""
    by_width = exponent(m.widths, m.seconds_by_width[part])
    return long_exponent(m, m.seconds_by_length[part]), by_width


def long_exponent(m: Measured, costs: Sequence[float]) -> float:
    """How a cost grows with n over long sequences."""
    long = [(n, cost) for n, cost in zip(m.lengths, costs, strict=True) if n >= LONG]
    return exponent(*zip(*long, strict=True))


def flop_exponents(m: Measured, part: str) -> tuple[float, float]:
    """How a part's operations grow with n and with d."""
    return exponent(m.lengths, m.flops_by_length[part]), exponent(m.widths, m.flops_by_width[part])


def layer_seconds(m: Measured) -> list[float]:
    """An attention layer's time: a fused kernel and the projections."""
    pairs = zip(m.seconds_by_length[FUSED], m.seconds_by_length[PROJECTIONS], strict=True)
    return [core + projections for core, projections in pairs]


def tables(m: Measured) -> tuple[Table, ...]:
    """Exponents, crossings and times."""
    rows = []
    for part in PARTS:
        counted, timed = flop_exponents(m, part), time_exponents(m, part)
        kept = long_exponent(m, m.memory[part])
        rows.append((part, *(f"{value:.2f}" for value in (*counted, *timed, kept))))
    fused = (*time_exponents(m, FUSED), long_exponent(m, m.memory[FUSED]))
    rows.append((FUSED, "–", "–", *(f"{value:.2f}" for value in fused)))
    met_at = {
        part: met(m.lengths, m.seconds_by_length[FUSED], m.seconds_by_length[part])
        for part in PARTS[1:]
    }
    where = [
        (part, *(f"{ratio:.2f}·d" for ratio in m.crossings[part]), _length(m, met_at[part]))
        for part in PARTS[1:]
    ]
    where.append(("all else in a block", *(f"{r:.2f}·d" for r in m.layer_crossings), "–"))
    times = [
        (str(n), *(f"{1e3 * m.seconds_by_length[part][index]:.3f}" for part in TIMED))
        for index, n in enumerate(m.lengths)
    ]
    return (
        Table(
            Words("Fitted exponents", "拟合出的指数"),
            ("part", "FLOPs in n", "FLOPs in d", "time in n", "time in d", "memory in n"),
            tuple(rows),
        ),
        Table(
            Words("The n from which attention costs more than", "从多大的 n 起，注意力更费"),
            ("than", *(f"FLOPs, d = {d}" for d in COUNTED_WIDTHS), f"time, fused, d = {m.d_model}"),
            tuple(where),
        ),
        Table(
            Words(f"CPU milliseconds, d = {m.d_model}", f"CPU 毫秒数，d = {m.d_model}"),
            ("n", *TIMED),
            tuple(times),
        ),
    )


def _length(m: Measured, found: float | None) -> str:
    if found is None:
        return f"> {m.lengths[-1]}"
    return f"≤ {m.lengths[0]}" if found <= m.lengths[0] else f"{found:.0f}"


def draw(m: Measured) -> Figure:
    """Operations, time, and who does most of a block's work."""
    figure, (left, middle, right) = new_figure(9.6, 3.6, ncols=3)
    for index, part in enumerate(TIMED):
        look: dict[str, Any] = {"color": COLOURS[index], "marker": MARKERS[index], "label": part}
        if part != FUSED:
            left.loglog(m.lengths, m.flops_by_length[part], **look)
        middle.loglog(m.lengths, [1e3 * value for value in m.seconds_by_length[part]], **look)
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
    """Who does how much of a block's work, with names where their areas are high."""
    block = [m.flops_by_length[part] for part in PARTS[:3]]
    shares = [[100 * cost / sum(costs) for cost in costs] for costs in zip(*block, strict=True)]
    ratios = [n / m.d_model for n in m.lengths]
    axis.stackplot(ratios, *zip(*shares, strict=True), colors=COLOURS[:3], alpha=0.8)
    name = {"color": "white", "fontweight": "bold", "ha": "center", "va": "center"}
    for index, part in enumerate(PARTS[:3]):
        at = max(range(1, len(ratios) - 1), key=lambda place: shares[place][index])
        height = sum(shares[at][:index]) + shares[at][index] / 2
        axis.text(ratios[at], height, part, **name)
    axis.set(
        title=f"Attention leads from n = {m.crossings[FEED_FORWARD][-1]:.1f}·d",
        xlabel="n / d",
        ylabel="share of a block's FLOPs (%)",
        xscale="log",
        ylim=(0, 100),
        xlim=(ratios[0], ratios[-1]),
    )
    axis.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    axis.minorticks_off()


def judge(m: Measured) -> Verdict:
    """Are the exponents those of the claim, and is attention the faster one in practice?"""
    as_counted = all(
        abs(found - expected) < 0.05
        for part in PARTS
        for found, expected in zip(flop_exponents(m, part), EXPECTED[part], strict=True)
    )
    slower = met(m.lengths, layer_seconds(m), m.seconds_by_length[RECURRENT])
    because = _because(m, slower)
    if not as_counted or slower == m.lengths[0]:
        return Verdict("does not hold", because)
    return Verdict("holds" if slower is None else "holds when", because)


def _because(m: Measured, slower: float | None) -> Words:
    core, recurrent = flop_exponents(m, CORE), flop_exponents(m, RECURRENT)
    timed = [time_exponents(m, part)[0] for part in (FUSED, RECURRENT)]
    first = {part: m.crossings[part][-1] for part in PARTS[1:]}
    kept = [long_exponent(m, m.memory[part]) for part in (CORE, FUSED)]
    faster = _faster(m, slower)
    return Words(
        f"{faster.en} Counted FLOPs grow as "
        f"n^{core[0]:.2f}·d^{core[1]:.2f} for attention and "
        f"n^{recurrent[0]:.2f}·d^{recurrent[1]:.2f} for a recurrent layer (time, with a fused "
        f"kernel: n^{timed[0]:.2f} and n^{timed[1]:.2f}); attention overtakes the recurrent layer "
        f"at n = {first[RECURRENT]:.1f}·d, its own projections at {first[PROJECTIONS]:.1f}·d and "
        f"the feed-forward layer at {first[FEED_FORWARD]:.1f}·d, and "
        f"makes up half a block at {m.layer_crossings[-1]:.1f}·d. Memory grows as n^{kept[0]:.2f} "
        f"on the equation's path, but n^{kept[1]:.2f} with a fused kernel.",
        f"{faster.zh}计数得到的浮点运算量，注意力按 n^{core[0]:.2f}·d^{core[1]:.2f} 增长，循环层按 "
        f"n^{recurrent[0]:.2f}·d^{recurrent[1]:.2f} 增长（时间，注意力用融合核：分别为 "
        f"n^{timed[0]:.2f} 和 n^{timed[1]:.2f}）。注意力在 n = {first[RECURRENT]:.1f}·d 处超过循环"
        f"层，在 {first[PROJECTIONS]:.1f}·d 处超过自身的投影，在 {first[FEED_FORWARD]:.1f}·d 处超过"
        f"前馈层，到 {m.layer_crossings[-1]:.1f}·d 时占整个块的一半。按公式计算时内"
        f"存按 n^{kept[0]:.2f} 增长，用融合核时只有 n^{kept[1]:.2f}。",
    )


def _faster(m: Measured, slower: float | None) -> Words:
    """Up to which length an attention layer takes less time than a recurrent one."""
    if slower is None:
        longest = m.lengths[-1]
        return Words(
            f"On one core, at d = {m.d_model}, an attention layer is faster than a recurrent one "
            f"at every length tried, up to n = {longest}.",
            f"单核、d = {m.d_model} 时，在试过的所有长度上（最长 n = {longest}），"
            f"注意力层都比循环层快。",
        )
    if slower == m.lengths[0]:
        return Words(
            f"On one core, at d = {m.d_model}, an attention layer is slower than a recurrent one "
            f"from the shortest length on, n = {m.lengths[0]}.",
            f"单核、d = {m.d_model} 时，从最短的 n = {m.lengths[0]} 起注意力层就比循环层慢。",
        )
    return Words(
        f"Holds while texts are short: on one core, at d = {m.d_model}, an attention layer is "
        f"faster than a recurrent one up to n = {slower:.0f}.",
        f"序列不长时才成立：单核、d = {m.d_model} 时，"
        f"只有 n 不超过 {slower:.0f}，注意力层才比循环层快。",
    )


LAB = Lab(
    number=14,
    name="cost",
    title=Words("What attention costs as texts grow", "文本变长，注意力要花多少代价"),
    claim=Words(
        "Self-attention costs O(n²·d) and runs all at once; a recurrent layer costs O(n·d²), one "
        "step after another. Attention's cost is higher, yet it is faster in practice.",
        "自注意力的开销是 O(n²·d)，但可以并行；循环层是 O(n·d²)，只能逐步计算。"
        "注意力的开销虽高，实际却更快。",
    ),
    experiment=Words(
        "Count the FLOPs of attention (as the equation), its projections, the feed-forward layer "
        "and a recurrent layer of the same width on the same tokens, over n and over d, fit "
        "exponents, and find where attention overtakes each. Confirm with CPU time on one core "
        "(least of several repeats) and with the bytes kept for the backward pass.",
        "在同样的宽度和词元上，数出注意力（按公式）、其投影、前馈层和循环层的浮点运算量，"
        "让 n 和 d 分别变化，拟合指数，找出注意力超过各部分的位置；再用单核 CPU 时间"
        "（多次取最小）和为反向传播保留的字节数加以印证。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
