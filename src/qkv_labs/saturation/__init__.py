"""Lab 2: a softmax with one large logit passes no gradient, though the loss may.

The logits are (g, 0, …, 0): one is a gap g above n - 1 equal ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.model import weights
from qkv_labs import tools
from qkv_labs.figures import Figure, look, new_figure
from qkv_labs.lab import Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("saturation")

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
    square_wrong: float  # the gradient of |p - y|²/2, which has to pass the Jacobian


@dataclass(frozen=True)
class Recovery:
    """Steps of gradient descent until a wrong answer is right; 0: not within the limit."""

    gap: float
    entropy: int
    square: int


@dataclass(frozen=True)
class Measured:
    """Norms by gap, fitted rates, and what they mean for number types and for learning."""

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
    far = [norms for norms in gaps if norms.gap >= FAR]
    grown = [math.exp(norms.gap) for norms in far]  # a power of exp(gap) is a rate of decay
    settings.tell("climbing out of wrong answers")
    wrong = range(1, settings.pick(11, 14))
    return Measured(
        N_CLASSES,
        gaps,
        max(abs(norms.closed - norms.autograd) / norms.closed for norms in gaps),
        tools.exponent(grown, tools.column(far, "autograd")),
        tools.exponent(grown, tools.column(far, "square_wrong")),
        {name: zero_from(dtype) for name, dtype in PRECISIONS.items()},
        [Recovery(gap, climb("entropy", gap), climb("square", gap)) for gap in map(float, wrong)],
    )


def logits_of(gap: float, n_large: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return logits of which `n_large` are a gap above the others, (n,)."""
    logits = torch.zeros(N_CLASSES, dtype=dtype)
    logits[:n_large] = gap
    return logits


def jacobian_norm(logits: Tensor) -> float:
    """Return the spectral norm of ∂p/∂z by autograd."""
    jacobian = torch.autograd.functional.jacobian(weights, logits)
    assert isinstance(jacobian, Tensor)
    return torch.linalg.matrix_norm(jacobian, 2).item()


def closed_norm(gap: float, n: int = N_CLASSES) -> float:
    """Spectral norm in closed form: diag(p) - ppᵀ has the eigenvalue n·p₁·p₂ and then p₂."""
    large, small = (math.exp(value) / (math.exp(gap) + n - 1) for value in (gap, 0.0))
    return max(n * large * small, small)


def slope(loss: str, logits: Tensor, label: int) -> Tensor:
    """Gradient of a loss by the logits: p - y for cross-entropy, J(p - y) for squares."""
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        if loss == "entropy":
            value = F.cross_entropy(logits[None], torch.tensor([label]))
        else:
            target = F.one_hot(torch.tensor(label), len(logits))
            value = (weights(logits) - target).square().sum() / 2
        return torch.autograd.grad(value, logits)[0]


def at_gap(gap: float) -> AtGap:
    """Measure every norm at one gap."""
    logits = logits_of(gap)
    return AtGap(
        gap=gap,
        closed=closed_norm(gap),
        autograd=jacobian_norm(logits),
        tied=jacobian_norm(logits_of(gap, n_large=2)),
        shifted=jacobian_norm(logits + 100),
        entropy_right=slope("entropy", logits, 0).norm().item(),
        entropy_wrong=slope("entropy", logits, 1).norm().item(),
        square_wrong=slope("square", logits, 1).norm().item(),
    )


def zero_from(dtype: torch.dtype, step: float = 0.25, most: float = 60.0) -> float:
    """Find the least gap at which ∂p₁/∂z₁ = p₁(1 - p₁) is computed as 0."""
    for index in range(int(most / step)):
        logits = logits_of(index * step, dtype=dtype).requires_grad_()
        if torch.autograd.grad(weights(logits)[0], logits)[0][0].item() == 0:
            return index * step
    return math.inf


def climb(loss: str, gap: float) -> int:
    """Count steps of gradient descent until a confident wrong answer is right."""
    logits = logits_of(gap)
    for step in range(1, MOST_STEPS + 1):
        logits = logits - RATE * slope(loss, logits, 1)
        if logits.argmax() == 1:
            return step
    return 0


NORMS = {  # column of the table: field
    "Jacobian, formula": "closed",
    "autograd": "autograd",
    "all + 100": "shifted",
    "two tied": "tied",
    "p - y, right": "entropy_right",
    "p - y, wrong": "entropy_wrong",
    "squared error, wrong": "square_wrong",
}


def tables(m: Measured) -> list[Table]:
    """Norms by gap, number types, and steps."""
    norms = [
        (f"{norms.gap:.0f}", *(f"{getattr(norms, name):.2e}" for name in NORMS.values()))
        for norms in m.gaps[::2]
    ]
    zeros = [(name, f"{gap:.2f}") for name, gap in m.zero_from.items()]
    steps = {
        "gap": "{0.gap:.0f}",
        "cross-entropy": "{0.entropy}",
        "squared error": lambda recovery: str(recovery.square or "–"),
    }
    return [
        say.table("norms", ("gap", *NORMS), norms, n=m.n_classes),
        say.table("zeros", ("number type", "from a gap of"), zeros),
        say.table("steps", steps, m.recoveries),
    ]


LINES = {  # label in the figure: field
    "cross-entropy, wrong": "entropy_wrong",
    "Jacobian, two logits tied": "tied",
    "cross-entropy, right": "entropy_right",
    "squared error, wrong": "square_wrong",
    "Jacobian, one large logit": "autograd",
}


def draw(m: Measured) -> Figure:
    """Norms against the gap, and steps against the gap."""
    figure, (left, right) = new_figure(7.6, 3.6, ncols=2, width_ratios=(3, 2))
    gaps = tools.column(m.gaps, "gap")
    for index, (label, name) in enumerate(LINES.items()):
        left.semilogy(gaps, tools.column(m.gaps, name), label=label, **look(index))
    closed = tools.column(m.gaps, "closed")
    left.semilogy(gaps, closed, color="#000000", ls=":", label="n·p₁·p₂ (formula)", zorder=5)
    left.set(
        title=f"One large logit: the Jacobian falls as exp({m.rate:.2f}·gap)",
        xlabel="gap to the other logits (nats)",
        ylabel="norm of the Jacobian or gradient",
    )
    left.legend(loc="lower left")
    for index, (label, name) in enumerate(
        (("cross-entropy", "entropy"), ("squared error", "square"))
    ):
        steps = [(r.gap, getattr(r, name)) for r in m.recoveries if getattr(r, name)]
        right.semilogy(*zip(*steps, strict=True), label=label, **look(3 * index))
    title = "Steps until a wrong answer is right"
    right.set(title=title, xlabel="first gap (nats)", ylabel="steps")
    right.legend()
    return figure


def judge(m: Measured) -> Verdict:
    """Does the Jacobian vanish, what does it take, and what does a loss on top make of it?"""
    first, last = m.gaps[0], m.gaps[-1]
    gone = 1e-3  # of a norm that is of the order of 1
    return say.verdict(
        decays=[
            compare(m.rate, "≈", -1, "exponent", margin=0.05, form=".3f"),
            compare(last.autograd, "<", gone, "autograd", form=".1g"),
        ],
        size=[
            compare(first.shifted, "<", gone, "all + 100", form=".3g"),
            compare(last.tied, "<", gone, "two tied", form=".3g"),
        ],
        square=compare(last.square_wrong, "<", gone, "squared error, wrong", form=".1g"),
        entropy=compare(last.entropy_wrong, "<", gone, "p - y, wrong", form=".3g"),
    )


LAB = say.make_lab(measure, tables, draw, judge)
