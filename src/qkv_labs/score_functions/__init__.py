"""Lab 3: scores by dot product, cosine or addition: what they cost and what they learn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.model import Layout, Mask, weights
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, look, new_figure, ticks
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("score_functions")

D_HEAD = 64  # of the costs
RATES = (3e-3, 1e-2)
LEARNT = "cosine, learnt τ"
Run = tuple[float, float, int]  # validation loss, test accuracy, steps to half the loss


class Dot(nn.Module):
    """QKᵀ, times a scale."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score (B, H, T, d) against (B, H, S, d), giving (B, H, T, S)."""
        raw = query @ key.transpose(-2, -1)
        return raw if self.scale == 1.0 else raw * self.scale


class Cosine(nn.Module):
    """The cosine between q and k, times a temperature that each head may learn."""

    def __init__(self, n_heads: int, d_head: int, learned: bool) -> None:
        super().__init__()
        # From √d on, learning starts with scores as large as those of the scaled dot product.
        first = torch.full((n_heads, 1, 1), math.sqrt(d_head))
        self.temperature = nn.Parameter(first) if learned else None

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Divide lengths out, so that only directions count."""
        raw = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-2, -1)
        return raw if self.temperature is None else raw * self.temperature


class Additive(nn.Module):
    """vᵀ·tanh(W·x + U·y); W and U are the projections that make queries and keys anyway."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__()
        bound = math.sqrt(3 / d_head)  # v has length 1 on average
        self.v = nn.Parameter(torch.empty(n_heads, 1, d_head, 1).uniform_(-bound, bound))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Combine each query with each key in a vector of its own, which is what it costs."""
        met = torch.tanh(query[..., :, None, :] + key[..., None, :, :])  # (B, H, T, S, d)
        return (met @ self.v).squeeze(-1)


ARMS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "dot": lambda n_heads, d_head: Dot(),
    "scaled dot": lambda n_heads, d_head: Dot(d_head**-0.5),
    "cosine": lambda n_heads, d_head: Cosine(n_heads, d_head, learned=False),
    LEARNT: lambda n_heads, d_head: Cosine(n_heads, d_head, learned=True),
    "additive": Additive,
}


class Attending(nn.Module):
    """softmax(score(Q, K) + M)·V, in place of a model's own attention path."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, *_: Any) -> Tensor:
        """Attend as the package's paths do; the score brings a scale of its own."""
        raw = self.score(query, key)
        bias = mask.additive(query.shape[-2], key.shape[-2], query.device, raw.dtype)
        return weights(raw + bias) @ value


class Ledger(TorchDispatchMode):
    """Counts what is computed inside: operations, and the bytes of the largest new tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        read = [x for x in args if isinstance(x, Tensor)]
        storage = out.untyped_storage()
        if storage.data_ptr() in [x.untyped_storage().data_ptr() for x in read]:
            return out  # a view computes nothing
        self.largest = max(self.largest, storage.nbytes())
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm"):
            self.operations += 2 * out.numel() * read[0].shape[-1]
        elif name not in ("clone", "_to_copy"):
            self.operations += max(x.numel() for x in [out, *read])
        return out


@dataclass(frozen=True)
class Cost:
    """What comparing n queries with n keys costs one head."""

    arm: str
    length: int
    operations: int
    largest: int  # bytes of the largest intermediate tensor
    seconds: float  # forward and backward, CPU


@dataclass(frozen=True)
class Quality:
    """What an arm learns at its better rate, one value a seed."""

    arm: str
    rate: float
    parameters: int
    accuracy: list[float]
    steps: list[int]  # until the loss is half of chance's; all steps where it never is


@dataclass(frozen=True)
class Measured:
    """Costs by arm and length, and what each arm learns."""

    costs: list[Cost]
    qualities: list[Quality]
    chance: float
    n_steps: int


def cost(arm: str, length: int, repeats: int = 5) -> Cost:
    """Count one forward pass of a head, and time forward and backward."""
    score = ARMS[arm](1, D_HEAD)
    query, key = torch.randn(2, 1, 1, length, D_HEAD)
    with torch.no_grad(), Ledger() as ledger:
        score(query, key)
    query.requires_grad_(), key.requires_grad_()
    seconds = []
    for _ in range(repeats + 1):
        start = time.process_time()
        score(query, key).sum().backward()
        seconds.append(time.process_time() - start)
    return Cost(arm, length, ledger.operations, ledger.largest, median(seconds[1:]))


@dataclass(frozen=True)
class Recall:
    """A task: given pairs of a key and a value, then one of the keys, name its value."""

    n_keys: int = 64
    n_values: int = 16
    n_pairs: int = 24

    def draw(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw keys (B, P+1), values (B, P+1) with a blank for the last, and its value (B,)."""
        keys = torch.rand(rows, self.n_keys, generator=generator).argsort(1)[:, : self.n_pairs]
        values = torch.randint(self.n_values, (rows, self.n_pairs), generator=generator)
        asked = torch.randint(self.n_pairs, (rows, 1), generator=generator)
        keys = torch.cat([keys, keys.gather(1, asked)], dim=1)
        shown = F.pad(values, (0, 1), value=self.n_values) + self.n_keys
        return keys, shown, values.gather(1, asked)[:, 0]


class Model(nn.Module):
    """One pre-norm layer without positions: only the content of a pair can be looked up."""

    def __init__(self, arm: str, task: Recall, d_model: int = 32) -> None:
        super().__init__()
        self.body = tools.encoder(
            task.n_keys + task.n_values + 1, d_model, 1, n_heads=1, positions="none"
        )
        self.output = nn.Linear(d_model, task.n_values)
        attention: Any = self.body.encoder.blocks[0].self_attention
        attention.attend = Attending(ARMS[arm](1, d_model))

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        """Logits of the value asked for, (B, values)."""
        pairs = self.body.embedding(keys) + self.body.embedding(values)
        return self.output(self.body.encoder(pairs, Layout())[:, -1])


def train(arm: str, rate: float, seed: int, n_steps: int, task: Recall) -> Run:
    """Train on fresh sequences, the same ones in the same order for each arm and rate."""
    with tools.seeded(seed):
        model = Model(arm, task)
    data = torch.Generator().manual_seed(seed + 1000)

    def loss(step: int) -> Tensor:
        keys, values, answer = task.draw(64, data)
        return F.cross_entropy(model(keys, values), answer)

    losses, half = tools.fit(model, loss, n_steps, lr=rate), math.log(task.n_values) / 2
    with torch.no_grad():
        held_out = [task.draw(1000, torch.Generator().manual_seed(seed + n)) for n in (2000, 3000)]
        logits = [model(keys, values) for keys, values, _ in held_out]
    accuracy = (logits[1].argmax(-1) == held_out[1][2]).double().mean().item()
    steps = next((step for step, value in enumerate(losses) if value < half), n_steps)
    return F.cross_entropy(logits[0], held_out[0][2]).item(), accuracy, steps


def quality(arm: str, seeds: Iterable[int], n_steps: int, task: Recall) -> Quality:
    """Train at both rates, and keep the one with the better validation loss."""
    runs = {rate: [train(arm, rate, seed, n_steps, task) for seed in seeds] for rate in RATES}
    rate = min(runs, key=lambda rate: fmean(run[0] for run in runs[rate]))
    _, accuracy, steps = zip(*runs[rate], strict=True)
    with tools.seeded(0):
        size = tools.n_weights(Model(arm, task))
    return Quality(arm, rate, size, list(accuracy), list(steps))


def measure(settings: Settings) -> Measured:
    """Costs at several lengths, then training of each arm."""
    lengths = settings.pick((64, 128, 256, 512), (64, 128, 256, 512, 1024))
    task, n_steps, qualities = Recall(), settings.pick(250, 1000), []
    settings.tell("counting costs")
    with tools.seeded(settings.seed):
        costs = [cost(arm, length) for arm in ARMS for length in lengths]
    for arm in ARMS:
        settings.tell(f"training with {arm}")
        qualities.append(quality(arm, settings.seeds(3, 8), n_steps, task))
    return Measured(costs, qualities, 1 / task.n_values, n_steps)


def longest(m: Measured) -> dict[str, Cost]:
    """Return each arm's cost at the greatest length."""
    length = max(cost.length for cost in m.costs)
    return {cost.arm: cost for cost in tools.where(m.costs, length=length)}


def tables(m: Measured) -> list[Table]:
    """Costs at the greatest length, and what was learnt."""
    costs = {
        "score": "{0.arm}",
        "operations (M)": lambda cost: f"{cost.operations / 1e6:.1f}",
        "largest tensor (MiB)": lambda cost: f"{cost.largest / 2**20:.1f}",
        "CPU (ms)": lambda cost: f"{1e3 * cost.seconds:.1f}",
    }
    learnt = {
        "score": "{0.arm}",
        "rate": "{0.rate:g}",
        "parameters": "{0.parameters}",
        "accuracy (%)": lambda quality: tools.percent(quality.accuracy),
        "steps to half the loss": lambda quality: tools.plus_minus(quality.steps, 0),
    }
    longest_ = list(longest(m).values())
    return [
        say.table("costs", costs, longest_, n=longest_[0].length, d=D_HEAD),
        say.table("learnt", learnt, m.qualities, m=m),
    ]


def draw(m: Measured) -> Figure:
    """Time by length on the left, each seed's accuracy on the right."""
    figure, (left, right) = new_figure(9.0, 3.8, ncols=2)
    lengths = sorted({cost.length for cost in m.costs})
    for index, arm in enumerate(ARMS):
        milliseconds = [cost.seconds * 1e3 for cost in tools.where(m.costs, arm=arm)]
        left.loglog(lengths, milliseconds, label=arm, **look(index))
    ticks(left, lengths)
    left.set(xlabel="queries and keys, n", ylabel="CPU milliseconds, forward + backward")
    additive, dot = (longest(m)[arm] for arm in ("additive", "scaled dot"))
    times = additive.seconds / dot.seconds
    left.set_title(f"At n = {dot.length}, additive takes {times:.0f} × scaled dot's time")
    left.legend()
    for index, quality in enumerate(m.qualities):
        values = [100 * accuracy for accuracy in quality.accuracy]
        right.barh(index, fmean(values), color=COLOURS[index], height=0.5, alpha=0.35)
        right.scatter(values, [index] * len(values), clip_on=False, **look(index))
    right.axvline(100 * m.chance, color=COLOURS[6], linestyle=":")
    right.text(100 * m.chance + 1, 0.5, "chance", fontsize=8, va="center")
    names = [f"{q.arm}\nhalf the loss: step {fmean(q.steps):.0f}" for q in m.qualities]
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.set(xlabel=f"recall on new sequences (%) after {m.n_steps} steps", xlim=(0, 100))
    right.set_title("What each score learns; a mark is a seed")
    return figure


def judge(m: Measured) -> Verdict:
    """Is the dot product cheaper, as good a measure, and better at learning than others?"""
    dot, additive = "scaled dot", "additive"
    costs = longest(m)
    seconds = Figures({arm: 1000 * cost.seconds for arm, cost in costs.items()})
    operations = Figures({arm: cost.operations / 1e6 for arm, cost in costs.items()})
    right = Figures({x.arm: Interval.percent(x.accuracy, 100) for x in m.qualities})
    steps = Figures({x.arm: Interval.of(x.steps) for x in m.qualities})
    hundredth = costs[dot].operations / 1e8
    return say.verdict(
        cheaper=[
            seconds.compare(dot, "<", additive),
            compare(costs[dot].largest / 2**20, "<", costs[additive].largest / 2**20),
        ],
        cosine_cost=operations.compare(dot, "<", LEARNT, margin=hundredth, form=".2f"),
        likeness=right.compare(dot, "≈", LEARNT, margin=5),
        better=right.compare(dot, ">", additive),
        sooner=steps.compare(dot, "<", additive, form=".0f"),
        unscaled=right.compare("dot", ">", additive, margin=-5),
    )


LAB = say.make_lab(measure, tables, draw, judge)
