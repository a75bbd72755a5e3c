"""Lab 3: dot, cosine or additive: how a query is compared with a key, what it costs and learns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.config import ModelConfig
from qkv.model import Encoder, Layout, Mask, weights
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, mean_and_spread, n_weights, plus_minus, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D_HEAD = 64  # of the costs
RATES = (3e-3, 1e-2)
LEARNT = "cosine, learnt τ"
POINT = 0.01  # accuracies that lie nearer than this are equal
Run = tuple[float, float, int]  # loss on sequences to choose by, accuracy on others, steps to half


class Dot(nn.Module):
    """QKᵀ, times a scale where there is one."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """(B, H, T, d) and (B, H, S, d) to (B, H, T, S), as the other scores."""
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
        """Lengths are divided out, so only directions count."""
        raw = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-2, -1)
        return raw if self.temperature is None else raw * self.temperature


class Additive(nn.Module):
    """vᵀ·tanh(W·x + U·y); W and U are the projections that make queries and keys anyway."""

    def __init__(self, n_heads: int, d_head: int) -> None:
        super().__init__()
        bound = math.sqrt(3 / d_head)  # v has length 1 on average
        self.v = nn.Parameter(torch.empty(n_heads, 1, d_head, 1).uniform_(-bound, bound))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Each query meets each key in a vector of its own, which is what it costs."""
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
    """softmax(score(Q, K) + M)·V, in the place of a model's own attention path."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """The signature of the package's paths; the score brings a scale of its own."""
        raw = self.score(query, key)
        shown = mask.additive(query.shape[-2], key.shape[-2], query.device, raw.dtype)
        return weights(raw + shown) @ value


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
    largest: int  # bytes of the largest tensor on the way
    seconds: float  # forward and backward, CPU


@dataclass(frozen=True)
class Quality:
    """How an arm learns at its better rate, seed by seed."""

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
    """Pairs of a key and a value, then one of the keys: which value belongs to it?"""

    n_keys: int = 64
    n_values: int = 16
    n_pairs: int = 24

    def draw(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Keys (B, P+1), values (B, P+1) with a blank for the last, and its value (B,)."""
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
        config = ModelConfig(
            family="encoder",
            vocab_size=task.n_keys + task.n_values + 1,
            d_model=d_model,
            n_heads=1,
            d_ff=2 * d_model,
            n_encoder_layers=1,
            positions="none",
            dropout=0.0,
            norm_position="pre",
        )
        self.body = Encoder(config)
        self.output = nn.Linear(d_model, task.n_values)
        attention: Any = self.body.encoder.blocks[0].self_attention
        attention.attend = Attending(ARMS[arm](config.n_heads, config.d_head))

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        """Logits of the value asked for, (B, values)."""
        pairs = self.body.embedding(keys) + self.body.embedding(values)
        return self.output(self.body.encoder(pairs, Layout())[:, -1])


def train(arm: str, rate: float, seed: int, n_steps: int, task: Recall) -> Run:
    """Train on fresh sequences; the same ones, in the same order, for each arm and rate."""
    with seeded(seed):
        model = Model(arm, task)
    data = torch.Generator().manual_seed(seed + 1000)

    def loss(step: int) -> Tensor:
        keys, values, answer = task.draw(64, data)
        return F.cross_entropy(model(keys, values), answer)

    losses, half = fit(model.parameters(), loss, n_steps, lr=rate), math.log(task.n_values) / 2
    with torch.no_grad():
        held = [task.draw(1000, torch.Generator().manual_seed(seed + n)) for n in (2000, 3000)]
        said = [model(keys, values) for keys, values, _ in held]
    accuracy = (said[1].argmax(-1) == held[1][2]).double().mean().item()
    steps = next((step for step, value in enumerate(losses) if value < half), n_steps)
    return F.cross_entropy(said[0], held[0][2]).item(), accuracy, steps


def quality(arm: str, seeds: Iterable[int], n_steps: int, task: Recall) -> Quality:
    """Train at both rates, and keep the one that does better on sequences set aside for that."""
    runs = {rate: [train(arm, rate, seed, n_steps, task) for seed in seeds] for rate in RATES}
    rate = min(runs, key=lambda rate: fmean(run[0] for run in runs[rate]))
    _, accuracy, steps = zip(*runs[rate], strict=True)
    with torch.random.fork_rng():
        size = n_weights(Model(arm, task))
    return Quality(arm, rate, size, list(accuracy), list(steps))


def measure(settings: Settings) -> Measured:
    """Costs at several lengths, then training of each arm."""
    lengths = (64, 128, 256, 512, 1024) if settings.full else (64, 128, 256, 512)
    task, n_steps = Recall(), 1000 if settings.full else 250
    seeds = range(settings.seed, settings.seed + (8 if settings.full else 3))
    qualities = []
    settings.tell("counting costs")
    with seeded(settings.seed):
        costs = [cost(arm, length) for arm in ARMS for length in lengths]
    for arm in ARMS:
        settings.tell(f"training with {arm}")
        qualities.append(quality(arm, list(seeds), n_steps, task))
    return Measured(costs, qualities, 1 / task.n_values, n_steps)


def longest(m: Measured) -> dict[str, Cost]:
    """Each arm's cost at the greatest length."""
    length = max(one.length for one in m.costs)
    return {one.arm: one for one in m.costs if one.length == length}


def tables(m: Measured) -> tuple[Table, ...]:
    """Costs at the greatest length, and what was learnt."""
    n = max(one.length for one in m.costs)
    costs = [
        (arm, *(f"{x:.1f}" for x in (one.operations / 1e6, one.largest / 2**20, 1e3 * one.seconds)))
        for arm, one in longest(m).items()
    ]
    learnt = [
        (
            one.arm,
            f"{one.rate:g}",
            str(one.parameters),
            plus_minus([100 * a for a in one.accuracy]),
            plus_minus(one.steps, 0),
        )
        for one in m.qualities
    ]
    titles = (
        Words(f"One head's scores, n = {n}, d = {D_HEAD}", f"一个头的打分，n = {n}，d = {D_HEAD}"),
        Words(f"Recall of pairs, {m.n_steps} steps", f"按键取值，训练 {m.n_steps} 步"),
    )
    cost_head = ("score", "operations (M)", "largest tensor (MiB)", "CPU (ms)")
    head = ("score", "rate", "parameters", "accuracy (%)", "steps to half the loss")
    return Table(titles[0], cost_head, tuple(costs)), Table(titles[1], head, tuple(learnt))


def draw(m: Measured) -> Figure:
    """Time by length on the left, each seed's accuracy on the right."""
    from qkv.inspect.draw import COLOURS, MARKERS, new_figure

    figure, (left, right) = new_figure(9.0, 3.8, ncols=2)
    for index, arm in enumerate(ARMS):
        points = [one for one in m.costs if one.arm == arm]
        left.loglog(
            [one.length for one in points],
            [one.seconds * 1e3 for one in points],
            color=COLOURS[index],
            marker=MARKERS[index],
            label=arm,
        )
    lengths = sorted({one.length for one in m.costs})
    left.set_xticks(lengths, [str(n) for n in lengths])
    left.minorticks_off()
    left.set(xlabel="queries and keys, n", ylabel="CPU milliseconds, forward + backward")
    dear, plain = (longest(m)[arm] for arm in ("additive", "scaled dot"))
    times = dear.seconds / plain.seconds
    left.set_title(f"At n = {plain.length}, additive takes {times:.0f} × scaled dot's time")
    left.legend()
    for index, one in enumerate(m.qualities):
        values = [100 * a for a in one.accuracy]
        right.barh(index, fmean(values), color=COLOURS[index], height=0.5, alpha=0.35)
        dots = {"color": COLOURS[index], "marker": MARKERS[index], "clip_on": False}
        right.scatter(values, [index] * len(values), **dots)
    right.axvline(100 * m.chance, color=COLOURS[6], linestyle=":")
    right.text(100 * m.chance + 1, 0.5, "chance", fontsize=8, va="center")
    names = [f"{one.arm}\nhalf the loss: step {fmean(one.steps):.0f}" for one in m.qualities]
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.set(xlabel=f"recall on new sequences (%) after {m.n_steps} steps", xlim=(0, 100))
    right.set_title("What each score learns; a mark is a seed")
    return figure


def compare(m: Measured, first: str, second: str) -> float:
    """How much better the first learns than the second: above 1 clearly, below -1 clearly worse.

    In accuracy, or in steps where both are as accurate; the unit is their spread.
    """
    ours, other = (next(q for q in m.qualities if q.arm == arm) for arm in (first, second))
    (a, a_spread), (b, b_spread) = map(mean_and_spread, (ours.accuracy, other.accuracy))
    if abs(a - b) > POINT:
        return (a - b) / max(math.hypot(a_spread, b_spread), POINT)
    (a, a_spread), (b, b_spread) = map(mean_and_spread, (ours.steps, other.steps))
    return (b - a) / max(math.hypot(a_spread, b_spread), 5.0)  # five steps are no difference


def because(m: Measured) -> Words:
    """The figures in two sentences."""
    dot, additive, cosine = (longest(m)[arm] for arm in ("scaled dot", "additive", LEARNT))
    slower, larger = additive.seconds / dot.seconds, additive.largest / dot.largest
    extra = 100 * (cosine.operations / dot.operations - 1)
    right = {one.arm: f"{100 * fmean(one.accuracy):.0f}" for one in m.qualities}
    steps = {one.arm: f"{fmean(one.steps):.0f}" for one in m.qualities}
    return Words(
        f"At n = {dot.length} additive scores take {slower:.0f} times the CPU time of the scaled "
        f"dot product and {larger:.0f} times its memory; a cosine takes {extra:.1f} % more "
        f"operations. Recall: scaled dot {right['scaled dot']} %, unscaled {right['dot']} %, "
        f"additive {right['additive']} %, cosine {right[LEARNT]} % with a learnt temperature and "
        f"{right['cosine']} % without; half the loss at step {steps['scaled dot']} (scaled dot), "
        f"{steps['additive']} (additive) and {steps[LEARNT]} (cosine, learnt).",
        f"n = {dot.length} 时，加性打分的 CPU 时间是缩放点积的 {slower:.0f} 倍，内存是 "
        f"{larger:.0f} 倍；余弦多 {extra:.1f}% 的运算。取值准确率：缩放点积 "
        f"{right['scaled dot']}%，不缩放 {right['dot']}%，加性 {right['additive']}%，"
        f"余弦 {right[LEARNT]}%（温度可学习）和 {right['cosine']}%（无温度）；损失减半所需步数："
        f"缩放点积 {steps['scaled dot']}，加性 {steps['additive']}，"
        f"余弦（温度可学习）{steps[LEARNT]}。",
    )


def conditions(m: Measured) -> list[Words]:
    """What must be said before the claim is true."""
    costs = longest(m)
    cheap = costs[LEARNT].operations < 1.05 * costs["scaled dot"].operations
    rival = "the rival is additive (a cosine with a learnt temperature is no dearer and no worse)"
    found = (
        (compare(m, "dot", "scaled dot") < -1, Words("the product is scaled", "点积要缩放")),
        (
            compare(m, "scaled dot", "additive") <= 1,
            Words("cost decides, not quality", "比的是开销而不是效果"),
        ),
        (
            cheap and compare(m, "scaled dot", LEARNT) <= 1,
            Words(rival, "对手是加性打分（温度可学习的余弦并不更费，也不更差）"),
        ),
    )
    return [words for true, words in found if true]


def judge(m: Measured) -> Verdict:
    """Cheaper than additive (by a fifth, or it is noise) and no worse; then, on what conditions?"""
    costs, why = longest(m), because(m)
    dot, additive = costs["scaled dot"], costs["additive"]
    cheaper = additive.seconds > 1.2 * dot.seconds and additive.largest > dot.largest
    if not cheaper or compare(m, "scaled dot", "additive") < -1:
        return Verdict("does not hold", why)
    needed = conditions(m)
    if not needed:
        return Verdict("holds", why)
    en, zh = " and ".join(one.en for one in needed), "、".join(one.zh for one in needed)
    told = Words(f"It holds when {en}. {why.en}", f"成立的条件：{zh}。{why.zh}")
    return Verdict("holds when", told)


LAB = Lab(
    number=3,
    name="score_functions",
    title=Words("Why the dot product?", "为什么用点积打分？"),
    claim=Words(
        "The dot product is the score of choice: cheaper than cosine and additive scores, as good "
        "a measure of likeness, and better at learning than additive attention.",
        "打分应当用点积：它比余弦和加性打分都省，同样能衡量相似度，学习效果还优于加性注意力。",
    ),
    experiment=Words(
        "Five scores in the same one-layer model, same data, steps and seeds, each at the better "
        "of two learning rates, recall values by their keys; operations, memory and CPU time are "
        "counted apart. W and U of the additive score are the query and key projections, so it "
        "has one vector more than the dot product and nothing else.",
        "五种打分放进同一个单层模型，数据、步数、随机种子都相同，学习率各取两个中较好的一个，任务是按键取值；"
        "运算量、内存和 CPU 时间另行统计。加性打分的 W、U 就是查询和键的投影，只比点积多一个向量。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
