"""Lab 13: recurrent nets against the Transformer: what must wait for what, what is recalled."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import equation, use_path
from qkv_labs import tools
from qkv_labs.figures import Figure, error_bars, look, new_figure, ticks
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("recurrent")

KEYS, VALUES, FILLERS, ASKED = 8, 4, 8, 4  # an LSTM learns it; with 16 keys it does not
QUERY = KEYS * VALUES  # token key·VALUES + value is a pair; QUERY + key asks for its value
FILLER = QUERY + KEYS
VOCABULARY = FILLER + FILLERS
LOADS, LENGTHS = (1, 2, 4, 8), (8, 16, 32, 64)  # pairs to keep, and tokens of a sequence
FAR_LOAD = 4  # pairs to keep where recall is counted by distance
BIN = 8  # tokens of distance that are counted together
RATES = (3e-3, 1e-2)
PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Linear")  # of matrices, as autograd names them
FUSED = "ScaledDotProduct"  # two of them in one node
LEARNT = 95  # percent right of near pairs: then a model has learnt the task
CLEAR = 5  # points of recall that count as forgotten


@dataclass(frozen=True)
class Sizes:
    """How much is learnt and timed."""

    steps: int = 600
    rows: int = 32
    examples: int = 500  # sequences of each load to recall from
    lengths: tuple[int, ...] = (8, 32, 128, 512)
    tokens: int = 4096  # in each timed step, whatever the length of its sequences
    repeats: int = 3


@dataclass(frozen=True)
class Arm:
    """One architecture: what it costs, and what it recalls in percent, one list a seed."""

    name: str
    parameters: int
    rate: float  # the better one of `RATES`
    chain: list[int]  # matrix products that wait for one another, by length
    milliseconds: list[float]  # CPU time of a training step, by length
    gpu_milliseconds: list[float]  # on a GPU, likewise; empty where there is none
    by_load: list[list[float]]  # recall for each of `LOADS`
    by_distance: list[list[float]]  # recall of FAR_LOAD pairs 1-8, 9-16 … tokens back


@dataclass(frozen=True)
class Measured:
    """All architectures."""

    lengths: list[int]
    tokens: int
    gpu: str  # its name, or empty
    arms: list[Arm]  # LSTM, LSTM with attention, Transformer


class Recurrent(nn.Module):
    """An LSTM over the tokens; with attention, each state also attends to those before it."""

    def __init__(self, width: int, attention: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.attention = nn.Linear(width, 2 * width) if attention else None
        self.combine = nn.Linear(2 * width, width) if attention else None
        self.output = nn.Linear(width, VALUES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of a value at each token, (B, T, VALUES)."""
        states, _ = self.lstm(self.embedding(tokens))
        if self.attention is not None and self.combine is not None:
            query, key = self.attention(states)[:, None].chunk(2, dim=-1)
            seen = F.scaled_dot_product_attention(query, key, states[:, None], is_causal=True)
            states = torch.tanh(self.combine(torch.cat([states, seen[:, 0]], dim=-1)))
        logits: Tensor = self.output(states)
        return logits


class Transformer(nn.Module):
    """One block of the package's decoder, with the output of the recurrent nets."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.decoder = tools.decoder(VOCABULARY, width, 1, max_length=1024)
        self.output = nn.Linear(width, VALUES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of a value at each token, (B, T, VALUES)."""
        logits: Tensor = self.output(self.decoder.hidden(tokens))
        return logits


def equal_width(build: Callable[[int], nn.Module], parameters: int) -> int:
    """Return the width that comes nearest to so many parameters."""
    return min(range(8, 128), key=lambda width: abs(tools.n_weights(build(width)) - parameters))


def builders() -> dict[str, Callable[[], nn.Module]]:
    """Return the three architectures with as many parameters as the Transformer."""
    goal = tools.n_weights(Transformer())
    plain = equal_width(lambda width: Recurrent(width, attention=False), goal)
    attending = equal_width(lambda width: Recurrent(width, attention=True), goal)
    return {
        "LSTM": lambda: Recurrent(plain, attention=False),
        "LSTM + attention": lambda: Recurrent(attending, attention=True),
        "Transformer": Transformer,
    }


@dataclass(frozen=True)
class Asked:
    """Sequences of pairs among filler, then queries; their answers, and how far back."""

    tokens: Tensor  # (B, length + A): A = ASKED, or the load if that is less
    answers: Tensor  # (B, A)
    distances: Tensor  # (B, A)


def asked(rows: int, length: int, load: int, generator: torch.Generator) -> Asked:
    """Draw sequences: `load` different keys, each once with a value, at random positions."""

    def shuffled(n: int, keep: int) -> Tensor:
        return torch.rand(rows, n, generator=generator).argsort(dim=1)[:, :keep]

    keys = shuffled(KEYS, load)
    values = torch.randint(VALUES, (rows, load), generator=generator)
    tokens = torch.randint(FILLER, VOCABULARY, (rows, length), generator=generator)
    positions = shuffled(length, load)
    tokens.scatter_(1, positions, keys * VALUES + values)
    chosen = shuffled(load, ASKED)
    queries = QUERY + keys.gather(1, chosen)
    distances = length + torch.arange(chosen.shape[1]) - positions.gather(1, chosen)
    return Asked(torch.cat([tokens, queries], dim=1), values.gather(1, chosen), distances)


def learnt(build: Callable[[], nn.Module], rate: float, seed: int, sizes: Sizes) -> nn.Module:
    """Train a model on all loads and lengths; every arm sees the same sequences."""
    with tools.seeded(seed):
        model = build()
    generator = torch.Generator().manual_seed(seed)

    def drawn(choices: Sequence[int]) -> int:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def loss(step: int) -> Tensor:
        batch = asked(sizes.rows, drawn(LENGTHS), drawn(LOADS), generator)
        return tools.token_loss(answered(model, batch), batch.answers)

    tools.fit(model, loss, sizes.steps, rate)
    return model.eval()


def answered(model: nn.Module, batch: Asked) -> Tensor:
    """Return logits of the values asked for, (B, A, VALUES)."""
    logits: Tensor = model(batch.tokens)[:, -batch.answers.shape[1] :]
    return logits


@torch.no_grad()
def recalled(model: nn.Module, sizes: Sizes, seed: int) -> tuple[list[float], list[float]]:
    """Return right answers in percent: by load, and by distance with FAR_LOAD pairs to keep."""
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    length, by_load, by_distance = max(LENGTHS), [], []
    for load in LOADS:
        batch = asked(sizes.examples, length, load, generator)
        hits = (answered(model, batch).argmax(dim=-1) == batch.answers).float() * 100
        by_load.append(float(hits.mean()))
        if load == FAR_LOAD:
            bins = ((batch.distances - 1) // BIN).clamp(max=length // BIN - 1)
            by_distance = [float(hits[bins == index].mean()) for index in range(length // BIN)]
    return by_load, by_distance


def longest_chain(result: Tensor) -> int:
    """Count the longest chain of matrix products in a graph, each needing the one before."""
    depth: dict[Any, int] = {}
    waiting: list[Any] = [result.grad_fn]
    while waiting:
        node = waiting[-1]
        inputs = [parent for parent, _ in node.next_functions if parent is not None]
        missing = [parent for parent in inputs if parent not in depth]
        if missing:
            waiting += missing
            continue
        own = 2 if node.name().startswith(FUSED) else int(node.name().startswith(PRODUCTS))
        depth[node] = own + max((depth[parent] for parent in inputs), default=0)
        waiting.pop()
    return depth[result.grad_fn]


def chain_of(model: nn.Module, length: int) -> int:
    """Count the products that wait for one another in reading so many tokens."""
    tokens = torch.zeros(1, length, dtype=torch.int64)
    model = copy.deepcopy(model).double()  # a fused kernel, for float32 only, would hide the steps
    with use_path(model, equation):
        return longest_chain(model(tokens).sum())


def step_milliseconds(model: nn.Module, length: int, sizes: Sizes, device: str = "cpu") -> float:
    """Return the time of forward and backward over `sizes.tokens` tokens, the least of several.

    CPU time on a CPU; on a GPU the clock's, from a finished step to the next.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (max(1, sizes.tokens // length), length)
    tokens = torch.randint(VOCABULARY, shape, generator=generator).to(device)
    model = model.to(device)

    def step() -> None:
        model(tokens).logsumexp(dim=-1).mean().backward()
        if device != "cpu":
            torch.cuda.synchronize()

    clock = time.process_time if device == "cpu" else time.perf_counter
    return 1000 * tools.least_seconds(step, sizes.repeats, clock)


def measured_arm(
    name: str, build: Callable[[], nn.Module], sizes: Sizes, settings: Settings
) -> Arm:
    """Choose the learning rate with the first seed, then recall with all; time a new model."""

    def run(rate: float, seed: int) -> tuple[list[float], list[float]]:
        settings.tell(f"{name}: learning rate {rate}, seed {seed}")
        return recalled(learnt(build, rate, seed, sizes), sizes, seed)

    seeds = settings.seeds(3, 5)
    rate, recalls = tools.at_best_rate(run, RATES, seeds, lambda recall: fmean(recall[0]))
    by_load, by_distance = map(list, zip(*recalls, strict=True))
    model = build()
    return Arm(
        name,
        tools.n_weights(model),
        rate,
        [chain_of(model, length) for length in sizes.lengths],
        [step_milliseconds(model, length, sizes) for length in sizes.lengths],
        [
            step_milliseconds(copy.deepcopy(model), length, sizes, "cuda")
            for length in sizes.lengths
            if torch.cuda.is_available()
        ],
        by_load,
        by_distance,
    )


def measure(settings: Settings) -> Measured:
    """Measure each architecture in turn."""
    sizes = settings.pick(Sizes(), Sizes(steps=3000, repeats=10))
    with tools.seeded(settings.seed):
        arms = [measured_arm(*arm, sizes, settings) for arm in builders().items()]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return Measured(list(sizes.lengths), sizes.tokens, gpu, arms)


def tables(m: Measured) -> list[Table]:
    """What waits for what and how long it takes, and what is recalled."""
    costs = [
        (arm.name, *(f"{n} / {ms:.0f}" for n, ms in zip(arm.chain, arm.milliseconds, strict=True)))
        for arm in m.arms
    ]
    recall = [
        (
            arm.name,
            *map(tools.plus_minus, zip(*arm.by_load, strict=True)),
            *map(tools.plus_minus, near_and_far(arm)),
        )
        for arm in m.arms
    ]
    lengths = ("model", *(f"length {n}" for n in m.lengths))
    loads = (f"{load} pairs" if load > 1 else "1 pair" for load in LOADS)
    sizes = {"model": "{0.name}", "parameters": "{0.parameters:,}", "rate": "{0.rate:g}"}
    result = [
        say.table("costs", lengths, costs, m=m),
        say.table("recall", ("model", *loads, "near", "far"), recall),
        say.table("sizes", sizes, m.arms),
    ]
    if m.gpu:
        times = [(arm.name, *(f"{ms:.1f}" for ms in arm.gpu_milliseconds)) for arm in m.arms]
        result.insert(1, say.table("gpu", lengths, times, m=m))
    return result


def near_and_far(arm: Arm) -> tuple[list[float], list[float]]:
    """Return recall of the nearest and of the farthest quarter of distances, one value a seed."""
    n, curves = max(1, len(arm.by_distance[0]) // 4), arm.by_distance
    return [fmean(curve[:n]) for curve in curves], [fmean(curve[-n:]) for curve in curves]


def draw(m: Measured) -> Figure:
    """Time by length, recall by distance, recall by the number of pairs."""
    figure, (cost, distance, load) = new_figure(11, 3.6, ncols=3)
    for index, arm in enumerate(m.arms):
        cost.errorbar(m.lengths, arm.milliseconds, label=arm.name, capsize=3, **look(index))
        bins = [BIN * (i + 0.5) for i in range(len(arm.by_distance[0]))]
        error_bars(distance, bins, zip(*arm.by_distance, strict=True), index, arm.name)
        error_bars(load, LOADS, zip(*arm.by_load, strict=True), index, arm.name)
    cost.set(xscale="log", xlabel="tokens a sequence", ylabel=f"CPU ms for {m.tokens} tokens")
    cost.set(ylim=(0, None), title="The same tokens in longer sequences")
    distance.set(xlabel="tokens since the pair", title="Recall by distance")
    load.set(xlabel="pairs to keep", xticks=LOADS, title="Recall by how much must be kept")
    for axes in (distance, load):
        axes.set(ylim=(0, 105), ylabel="right answers, %")
        axes.axhline(100 / VALUES, color="0.6", linestyle=":")
        axes.text(axes.get_xlim()[0], 100 / VALUES + 1, " chance", color="0.4", fontsize=8)
    ticks(cost, m.lengths)
    figure.legend(*load.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def judge(m: Measured) -> Verdict:
    """Judge waiting, time and forgetting, each by its own figure."""
    lstm, attending, transformer = tools.column(m.arms, "name")
    chain = Figures({arm.name: arm.chain[-1] for arm in m.arms})
    cpu = Figures({arm.name: arm.milliseconds[-1] for arm in m.arms})
    gpu = Figures({arm.name: arm.gpu_milliseconds[-1] for arm in m.arms if m.gpu})
    near, far = (Interval.percent(recall) for recall in near_and_far(m.arms[0]))
    few, many = (
        {arm.name: Interval.percent([loads[at] for loads in arm.by_load]) for arm in m.arms}
        for at in (0, -1)
    )
    n_many = f"{LOADS[-1]} pairs"
    return say.verdict(
        {"length": m.lengths[-1], "many": LOADS[-1], "few": LOADS[0]},
        waits=chain.compare(lstm, ">", transformer, form=".0f"),
        queue=chain.compare(attending, ">", lstm, form=".0f"),
        cpu=cpu.compare(lstm, ">", transformer, form=".0f"),
        on_gpu=[gpu.compare(lstm, ">", transformer)] if m.gpu else [],
        forgets=[
            compare(near, ">", LEARNT, "near"),
            compare(far, "<", near, ("far", "near"), margin=CLEAR),
        ],
        full=compare(many[lstm], "<", few[lstm], (n_many, "1 pair")),
        transformer=compare(many[transformer], ">", many[lstm], (transformer, lstm)),
    )


LAB = say.make_lab(measure, tables, draw, judge, values={"length": max(LENGTHS), "load": FAR_LOAD})
