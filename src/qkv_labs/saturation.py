"""Lab 2: how a softmax with one large logit lets no gradient through, and why the loss still does.

The logits are (g, 0, …, 0): one stands a gap g above n - 1 equal ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.inspect.draw import COLOURS, MARKERS, new_figure
from qkv.model import weights
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import exponent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_CLASSES = 8
GAPS = tuple(float(gap) for gap in range(21))
FAR = 6.0  # gaps from here on are large: the rate of decay is fitted to them
PRECISIONS = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
RATE, MOST_STEPS = 1.0, 100_000


@dataclass(frozen=True)
class AtGap:
    """Norms at one gap, in float64."""

    gap: float
    closed: float  # the Jacobian's spectral norm by the formula
    autograd: float  # and by differentiating
    tied: float  # of a Jacobian with two equally large logits
    shifted: float  # of the first one with 100 added to every logit
    entropy_right: float  # cross-entropy's gradient, the large logit being the label's
    entropy_wrong: float  # and with another label
    square_wrong: float  # the same of |p - y|²/2, which has to pass the Jacobian


@dataclass(frozen=True)
class Recovery:
    """Steps of gradient descent until a wrong answer is right; 0: not within the limit."""

    gap: float
    entropy: int
    square: int


@dataclass(frozen=True)
class Measured:
    """Norms gap by gap, fitted rates, and what they mean for numbers and for learning."""

    n_classes: int
    gaps: list[AtGap]
    largest_difference: float  # between formula and autograd, relative
    rate: float  # norm ≈ a·exp(rate·gap)
    square_rate: float
    zero_from: dict[str, float]  # by number type: the gap from which ∂p₁/∂z₁ is 0 exactly
    recoveries: list[Recovery]


def measure(settings: Settings) -> Measured:
    """Differentiate at each gap, fit, and let two losses climb out of a wrong answer."""
    settings.tell("differentiating softmax")
    gaps = [at_gap(gap) for gap in GAPS]
    far = [one for one in gaps if one.gap >= FAR]
    grown = [math.exp(one.gap) for one in far]  # a power of exp(gap) is a rate of decay
    settings.tell("climbing out of wrong answers")
    wrong = range(1, 14 if settings.full else 11)
    return Measured(
        N_CLASSES,
        gaps,
        max(abs(one.closed - one.autograd) / one.closed for one in gaps),
        exponent(grown, [one.autograd for one in far]),
        exponent(grown, [one.square_wrong for one in far]),
        {name: zero_from(dtype) for name, dtype in PRECISIONS.items()},
        [recover(float(gap)) for gap in wrong],
    )


def logits_of(gap: float, n_large: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """`n_large` logits a gap above the others, (n,)."""
    logits = torch.zeros(N_CLASSES, dtype=dtype)
    logits[:n_large] = gap
    return logits


def jacobian(logits: Tensor) -> Tensor:
    """∂p/∂z by autograd, (n, n)."""
    found = torch.autograd.functional.jacobian(weights, logits)
    assert isinstance(found, Tensor)
    return found


def norm(matrix: Tensor) -> float:
    """The largest factor by which it lengthens a vector."""
    return torch.linalg.matrix_norm(matrix, 2).item()


def closed_norm(gap: float, n: int = N_CLASSES) -> float:
    """The same without differentiating: diag(p) - ppᵀ has the eigenvalue n·p₁·p₂ and then p₂."""
    large, small = (math.exp(value) / (math.exp(gap) + n - 1) for value in (gap, 0.0))
    return max(n * large * small, small)


def slope(loss: str, logits: Tensor, label: int) -> Tensor:
    """The gradient of a loss by the logits: p - y for cross-entropy, J(p - y) for squares."""
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        if loss == "entropy":
            value = F.cross_entropy(logits[None], torch.tensor([label]))
        else:
            wanted = F.one_hot(torch.tensor(label), len(logits))
            value = (weights(logits) - wanted).square().sum() / 2
        return torch.autograd.grad(value, logits)[0]


def at_gap(gap: float) -> AtGap:
    """Every norm at one gap."""
    logits = logits_of(gap)
    return AtGap(
        gap=gap,
        closed=closed_norm(gap),
        autograd=norm(jacobian(logits)),
        tied=norm(jacobian(logits_of(gap, n_large=2))),
        shifted=norm(jacobian(logits + 100)),
        entropy_right=slope("entropy", logits, 0).norm().item(),
        entropy_wrong=slope("entropy", logits, 1).norm().item(),
        square_wrong=slope("square", logits, 1).norm().item(),
    )


def zero_from(dtype: torch.dtype, step: float = 0.25, most: float = 60.0) -> float:
    """The least gap at which ∂p₁/∂z₁ = p₁(1 - p₁) comes out as nothing at all."""
    for index in range(int(most / step)):
        logits = logits_of(index * step, dtype=dtype).requires_grad_()
        if torch.autograd.grad(weights(logits)[0], logits)[0][0].item() == 0:
            return index * step
    return math.inf


def recover(gap: float) -> Recovery:
    """How long each loss takes, at the same learning rate, to make the right answer likeliest."""
    return Recovery(gap, climb("entropy", gap), climb("square", gap))


def climb(loss: str, gap: float) -> int:
    """Steps of plain gradient descent from a wrong answer that is sure of itself."""
    logits = logits_of(gap)
    for step in range(1, MOST_STEPS + 1):
        logits = logits - RATE * slope(loss, logits, 1)
        if logits.argmax() == 1:
            return step
    return 0


def tables(m: Measured) -> tuple[Table, ...]:
    """Norms by gap, number types, and steps."""
    rows = [
        (
            f"{one.gap:.0f}",
            *(
                f"{value:.2e}"
                for value in (
                    one.closed,
                    one.autograd,
                    one.shifted,
                    one.tied,
                    one.entropy_right,
                    one.entropy_wrong,
                    one.square_wrong,
                )
            ),
        )
        for one in m.gaps[::2]
    ]
    return (
        Table(
            Words(
                f"Norms with one of {m.n_classes} logits a gap above the others",
                f"{m.n_classes} 个 logit 中一个高出其余时的各个范数",
            ),
            (
                "gap",
                "Jacobian, formula",
                "autograd",
                "all + 100",
                "two tied",
                "p - y, right",
                "p - y, wrong",
                "squared error, wrong",
            ),
            tuple(rows),
        ),
        Table(
            Words("Where the gradient is 0 exactly", "梯度从多大的差距起恰好为 0"),
            ("number type", "from a gap of"),
            tuple((name, f"{gap:.2f}") for name, gap in m.zero_from.items()),
        ),
        Table(
            Words("Steps until a wrong answer is right", "从答错到答对所需的步数"),
            ("gap", "cross-entropy", "squared error"),
            tuple((f"{r.gap:.0f}", str(r.entropy), str(r.square or "–")) for r in m.recoveries),
        ),
    )


def draw(m: Measured) -> Figure:
    """Norms against the gap, and steps against the gap."""
    figure, (left, right) = new_figure(7.6, 3.6, ncols=2, width_ratios=(3, 2))
    gaps = [one.gap for one in m.gaps]
    lines = {
        "cross-entropy, wrong": [one.entropy_wrong for one in m.gaps],
        "Jacobian, two logits tied": [one.tied for one in m.gaps],
        "cross-entropy, right": [one.entropy_right for one in m.gaps],
        "squared error, wrong": [one.square_wrong for one in m.gaps],
        "Jacobian, one large logit": [one.autograd for one in m.gaps],
    }
    for index, (name, norms) in enumerate(lines.items()):
        left.semilogy(gaps, norms, MARKERS[index], color=COLOURS[index], label=name, ls="-")
    closed = [one.closed for one in m.gaps]
    left.semilogy(gaps, closed, color="#000000", ls=":", label="n·p₁·p₂ (formula)", zorder=5)
    left.set(
        title=f"One large logit: the Jacobian falls as exp({m.rate:.2f}·gap)",
        xlabel="gap to the other logits (nats)",
        ylabel="norm of the Jacobian or gradient",
    )
    left.legend(loc="lower left")
    for index, name in enumerate(("entropy", "square")):
        steps = [(r.gap, getattr(r, name)) for r in m.recoveries if getattr(r, name)]
        label = "cross-entropy" if name == "entropy" else "squared error"
        right.semilogy(
            *zip(*steps, strict=True),
            marker=MARKERS[3 * index],
            color=COLOURS[3 * index],
            label=label,
        )
    right.set(
        title="Steps until a wrong answer is right", xlabel="first gap (nats)", ylabel="steps"
    )
    right.legend()
    return figure


def judge(m: Measured) -> Verdict:
    """Does the Jacobian vanish exponentially, and is a gap what it takes?"""
    first, last = m.gaps[0], m.gaps[-1]
    moved = max(abs(one.shifted - one.autograd) / one.autograd for one in m.gaps)
    sound = m.largest_difference < 1e-4 and moved < 1e-4
    decays = abs(m.rate + 1) < 0.05 and last.autograd < 1e-3 * first.autograd
    spared = max(last.tied, last.entropy_wrong) > 0.1  # far from nothing, where J is
    slow = next((r for r in reversed(m.recoveries) if r.square), m.recoveries[0])
    squares = f"{slow.square:,}" if slow.square else f"> {MOST_STEPS:,}"
    numbers = ", ".join(f"{name} {gap:.1f}" for name, gap in m.zero_from.items())
    because = Words(
        f"Where one logit stands alone above the rest, the Jacobian's norm is n·p₁·p₂ (autograd "
        f"differs by {m.largest_difference:.0e}) and falls as exp({m.rate:.3f}·gap), to "
        f"{last.autograd:.0e} at a gap of {last.gap:.0f}; it is 0 exactly from a gap of: "
        f"{numbers}. With 100 more on every logit the norm changes by a share of {moved:.1g}, and "
        f"with two logits tied it is {last.tied:.2f}. "
        f"Cross-entropy does not pass this Jacobian: p - y has the norm {last.entropy_wrong:.2f} "
        f"when wrong, and from a gap of {slow.gap:.0f} it is right after {slow.entropy} steps, "
        f"where squared error takes {squares}.",
        f"若只有一个 logit 远高于其余，雅可比的范数为 n·p₁·p₂（与自动求导相差 "
        f"{m.largest_difference:.0e}），按 exp({m.rate:.3f}·差距) 衰减，差距为 {last.gap:.0f} 时只"
        f"剩 {last.autograd:.0e}；各精度下梯度恰好为 0 的起点：{numbers}。所有 "
        f"logit 都加 100，范数的相对变化为 {moved:.1g}；两个 logit 并列最大时，范数为 "
        f"{last.tied:.2f}。交叉熵不经过这个雅可比：答错"
        f"时 p - y 的范数为 {last.entropy_wrong:.2f}，从差距 {slow.gap:.0f} 出发 {slow.entropy} 步"
        f"即可答对，而平方误差要 {squares} 步。",
    )
    if not (sound and decays):
        return Verdict("does not hold", because)
    if not spared:
        return Verdict("holds", because)
    when = Words(
        "Holds when one logit stands alone and the loss passes the softmax's Jacobian. ",
        "只有一个 logit 独大、且损失的梯度要经过 softmax 的雅可比时才成立。",
    )
    return Verdict("holds when", Words(when.en + because.en, when.zh + because.zh))


LAB = Lab(
    number=2,
    name="saturation",
    title=Words("A large logit shuts the softmax", "一个很大的 logit 会让 softmax 不再传梯度"),
    claim=Words(
        "When one of softmax's inputs is very large, its output is almost one-hot and every "
        "derivative p_i(1 - p_i) and -p_i·p_j is about 0: the gradient vanishes.",
        "softmax 的输入中若有一个很大，输出就几乎是 one-hot，各个偏导 p_i(1 - p_i) 与 -p_i·p_j 都"
        "接近 0，梯度随之消失。",
    ),
    experiment=Words(
        "Widen the gap between one logit and seven equal ones; compare the Jacobian's norm by "
        "autograd with its closed form and fit the decay. Then try what could refute it: two equal "
        "large logits, all logits shifted, and the gradient of two losses that sit on the softmax, "
        "with the steps each needs to undo a wrong answer at the same learning rate.",
        "逐渐拉开一个 logit 与其余七个的差距，比较自动求导与闭式解得到的雅可比范数，并拟合衰减速度"
        "；再用可能推翻它的情形检验：两个 logit 并列最大、所有 logit 一起平移，以及两种损失函数的梯"
        "度，并在同一学习率下数它们各需多少步纠正一个错误答案。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
