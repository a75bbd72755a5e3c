"""Recurrent nets against the Transformer: what must wait for what, and what is recalled."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Decoder, equation, use_path
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import fit, mean_and_spread, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS, VALUES, FILLERS, ASKED = 16, 8, 8, 4
QUERY = KEYS * VALUES  # token key·VALUES + value is a pair; QUERY + key asks for its value
FILLER = QUERY + KEYS
VOCABULARY = FILLER + FILLERS
LOADS, LENGTHS = (4, 8, 16), (16, 32, 64)  # pairs to keep, and tokens among which they stand
BIN = 8  # tokens of distance that are counted together
RATES = (3e-3, 1e-2)
PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Linear")  # of matrices, as autograd names them
FUSED = "ScaledDotProduct"  # two of them in one node
CLEAR = 5.0  # points of accuracy that count as a difference


@dataclass(frozen=True)
class Sizes:
    """How much is learnt and timed."""

    steps: int = 600
    rows: int = 32
    seeds: int = 3
    examples: int = 500  # sequences of each load to recall from
    lengths: tuple[int, ...] = (8, 32, 128, 512)
    tokens: int = 4096  # in each timed step, whatever the length of its sequences
    repeats: int = 3


@dataclass(frozen=True)
class Arm:
    """One architecture: what it costs and what it recalls, in percent, a list a seed."""

    name: str
    parameters: int
    rate: float  # the better one of `RATES`
    chain: list[int]  # matrix products that wait for one another, by length
    milliseconds: list[float]  # CPU time of a training step, by length
    by_load: list[list[float]]  # recall for each of `LOADS`
    by_distance: list[list[float]]  # recall of pairs 1-8, 9-16 … tokens back


@dataclass(frozen=True)
class Measured:
    """What the lab found."""

    lengths: list[int]
    tokens: int
    arms: list[Arm]  # LSTM, LSTM with attention, Transformer


class Recurrent(nn.Module):
    """An LSTM over the tokens; with attention, each state also looks at those before it."""

    def __init__(self, width: int, attention: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.attention = nn.Linear(width, 2 * width) if attention else None
        self.combine = nn.Linear(2 * width, width) if attention else None
        self.output = nn.Linear(width, VALUES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a value at each token, (B, T, VALUES)."""
        states, _ = self.lstm(self.embedding(tokens))
        if self.attention is not None and self.combine is not None:
            query, key = self.attention(states)[:, None].chunk(2, dim=-1)
            seen = F.scaled_dot_product_attention(query, key, states[:, None], is_causal=True)
            states = torch.tanh(self.combine(torch.cat([states, seen[:, 0]], dim=-1)))
        logits: Tensor = self.output(states)
        return logits


class Transformer(nn.Module):
    """One block of the package's decoder, and the same output."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.decoder = Decoder(
            ModelConfig(
                family="decoder",
                vocab_size=VOCABULARY,
                d_model=width,
                n_heads=4,
                d_ff=2 * width,
                n_decoder_layers=1,
                dropout=0.0,
                max_length=1024,
                norm_position="pre",
            )
        )
        self.output = nn.Linear(width, VALUES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a value at each token, (B, T, VALUES)."""
        logits: Tensor = self.output(self.decoder.hidden(tokens))
        return logits


def count(model: nn.Module) -> int:
    """Parameters, shared ones once."""
    return sum(weight.numel() for weight in model.parameters())


def equal_width(build: Callable[[int], nn.Module], parameters: int) -> int:
    """The width that comes nearest to so many parameters."""
    return min(range(8, 128), key=lambda width: abs(count(build(width)) - parameters))


def builders() -> dict[str, Callable[[], nn.Module]]:
    """The three architectures with as many parameters as the Transformer."""
    goal = count(Transformer())
    plain = equal_width(lambda width: Recurrent(width, attention=False), goal)
    looking = equal_width(lambda width: Recurrent(width, attention=True), goal)
    return {
        "LSTM": lambda: Recurrent(plain, attention=False),
        "LSTM + attention": lambda: Recurrent(looking, attention=True),
        "Transformer": Transformer,
    }


@dataclass(frozen=True)
class Asked:
    """Sequences of pairs among filler, then queries; what they ask for, and how far back."""

    tokens: Tensor  # (B, length + ASKED)
    answers: Tensor  # (B, ASKED)
    distances: Tensor  # (B, ASKED)


def asked(rows: int, length: int, load: int, generator: torch.Generator) -> Asked:
    """Draw sequences: `load` different keys, each once with a value, at random places."""

    def shuffled(n: int, keep: int) -> Tensor:
        return torch.rand(rows, n, generator=generator).argsort(dim=1)[:, :keep]

    keys = shuffled(KEYS, load)
    values = torch.randint(VALUES, (rows, load), generator=generator)
    tokens = torch.randint(FILLER, VOCABULARY, (rows, length), generator=generator)
    places = shuffled(length, load)
    tokens.scatter_(1, places, keys * VALUES + values)
    chosen = shuffled(load, ASKED)
    queries = QUERY + keys.gather(1, chosen)
    distances = length + torch.arange(chosen.shape[1]) - places.gather(1, chosen)
    return Asked(torch.cat([tokens, queries], dim=1), values.gather(1, chosen), distances)


def learnt(build: Callable[[], nn.Module], rate: float, seed: int, sizes: Sizes) -> nn.Module:
    """A model taught on all loads and lengths; every arm sees the same sequences."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
    generator = torch.Generator().manual_seed(seed)

    def drawn(choices: Sequence[int]) -> int:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def loss(step: int) -> Tensor:
        batch = asked(sizes.rows, drawn(LENGTHS), drawn(LOADS), generator)
        logits = model(batch.tokens)[:, -ASKED:]
        return F.cross_entropy(logits.flatten(0, 1), batch.answers.flatten())

    fit(model.parameters(), loss, sizes.steps, rate)
    return model.eval()


@torch.no_grad()
def recalled(model: nn.Module, sizes: Sizes, seed: int) -> tuple[list[float], list[float]]:
    """Right answers in percent on fresh sequences: by load, and by distance."""
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    length, right, distances = max(LENGTHS), [], []
    for load in LOADS:
        batch = asked(sizes.examples, length, load, generator)
        right.append(model(batch.tokens)[:, -ASKED:].argmax(dim=-1) == batch.answers)
        distances.append(batch.distances)
    hits = torch.stack(right).float() * 100
    bins = ((torch.stack(distances) - 1) // BIN).clamp(max=length // BIN - 1)
    by_distance = [float(hits[bins == index].mean()) for index in range(length // BIN)]
    return hits.mean(dim=(1, 2)).tolist(), by_distance


def longest_chain(result: Tensor) -> int:
    """The most matrix products of which each needs the one before, in what led to `result`."""
    depth: dict[Any, int] = {}
    waiting: list[Any] = [result.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [other for other, _ in node.next_functions if other is not None]
        missing = [other for other in before if other not in depth]
        if missing:
            waiting += missing
            continue
        own = 2 if node.name().startswith(FUSED) else int(node.name().startswith(PRODUCTS))
        depth[node] = own + max((depth[other] for other in before), default=0)
        waiting.pop()
    return depth[result.grad_fn]


def chain_of(model: nn.Module, length: int) -> int:
    """How many products wait for one another in reading so many tokens."""
    tokens = torch.zeros(1, length, dtype=torch.int64)
    model = copy.deepcopy(model).double()  # a fused kernel, for float32 only, would hide the steps
    with use_path(model, equation):
        return longest_chain(model(tokens).sum())


def step_milliseconds(model: nn.Module, length: int, sizes: Sizes) -> float:
    """CPU time of forward and backward over `sizes.tokens` tokens, the least of several times."""
    generator = torch.Generator().manual_seed(0)
    shape = (max(1, sizes.tokens // length), length)
    tokens = torch.randint(VOCABULARY, shape, generator=generator)
    times = []
    for _ in range(sizes.repeats):
        began = time.process_time()
        model(tokens).logsumexp(dim=-1).mean().backward()
        times.append(time.process_time() - began)
    return 1000 * min(times)


def measured_arm(
    name: str, build: Callable[[], nn.Module], sizes: Sizes, settings: Settings
) -> Arm:
    """Choose the learning rate with the first seed, then recall with all; time a fresh model."""

    def run(rate: float, seed: int) -> tuple[list[float], list[float]]:
        settings.tell(f"{name}: learning rate {rate}, seed {seed}")
        return recalled(learnt(build, rate, seed, sizes), sizes, seed)

    first = {rate: run(rate, settings.seed) for rate in RATES}
    rate = max(RATES, key=lambda rate: fmean(first[rate][0]))
    seeds = range(settings.seed + 1, settings.seed + sizes.seeds)
    found = [first[rate], *(run(rate, seed) for seed in seeds)]
    model = build()
    return Arm(
        name,
        count(model),
        rate,
        [chain_of(model, length) for length in sizes.lengths],
        [step_milliseconds(model, length, sizes) for length in sizes.lengths],
        [loads for loads, _ in found],
        [distances for _, distances in found],
    )


def measure(settings: Settings) -> Measured:
    """Each architecture in turn."""
    sizes = Sizes(steps=3000, seeds=5, repeats=10) if settings.full else Sizes()
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        arms = [measured_arm(*arm, sizes, settings) for arm in builders().items()]
    return Measured(list(sizes.lengths), sizes.tokens, arms)


def tables(m: Measured) -> tuple[Table, ...]:
    """What waits for what and how long it takes, and what is recalled."""
    cost = [
        (arm.name, *(f"{n} / {ms:.0f}" for n, ms in zip(arm.chain, arm.milliseconds, strict=True)))
        for arm in m.arms
    ]
    recall = [
        (
            arm.name,
            f"{arm.parameters:,}",
            f"{arm.rate:g}",
            *map(plus_minus, _columns(arm.by_load)),
            *map(plus_minus, near_and_far(arm)),
        )
        for arm in m.arms
    ]
    costs = Words(
        f"Products that wait for one another / CPU ms for {m.tokens} tokens, by length",
        f"必须依次进行的矩阵乘法次数 / 处理 {m.tokens} 个词元的 CPU 毫秒数（按序列长度）",
    )
    answers = Words("Right answers, %, mean ± spread over seeds", "答对的百分比，均值 ± 标准差")
    loads = (f"{load} pairs" for load in LOADS)
    return (
        Table(costs, ("model", *(f"length {length}" for length in m.lengths)), tuple(cost)),
        Table(answers, ("model", "parameters", "rate", *loads, "near", "far"), tuple(recall)),
    )


def _columns(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=True)]


def near_and_far(arm: Arm) -> tuple[list[float], list[float]]:
    """Recall of the nearest quarter of distances and of the farthest, a value a seed."""
    n, curves = max(1, len(arm.by_distance[0]) // 4), arm.by_distance
    return [fmean(curve[:n]) for curve in curves], [fmean(curve[-n:]) for curve in curves]


def draw(m: Measured) -> Figure:
    """Time by length, recall by distance, recall by the number of pairs."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, (cost, distance, load) = new_figure(11, 3.6, ncols=3)
    for arm, colour, marker in zip(m.arms, COLOURS, MARKERS, strict=False):
        style = {"color": colour, "marker": marker, "label": arm.name, "capsize": 3}
        cost.errorbar(m.lengths, arm.milliseconds, **style)
        for axes, rows, places in (
            (distance, arm.by_distance, [BIN * (i + 0.5) for i in range(len(arm.by_distance[0]))]),
            (load, arm.by_load, LOADS),
        ):
            means, spreads = zip(*map(mean_and_spread, _columns(rows)), strict=True)
            axes.errorbar(places, means, spreads, **style)
    cost.set(
        xscale="log",
        xlabel="tokens a sequence",
        ylabel=f"CPU ms for {m.tokens} tokens",
        ylim=(0, None),
        title="The same tokens in longer sequences",
    )
    distance.set(xlabel="tokens since the pair", title="Recall by distance")
    load.set(xlabel="pairs to keep", xticks=LOADS, title="Recall by how much must be kept")
    for axes in (distance, load):
        axes.set(ylim=(0, 105), ylabel="right answers, %")
        axes.axhline(100 / VALUES, color="0.6", linestyle=":")
        axes.text(axes.get_xlim()[0], 100 / VALUES + 1, " chance", color="0.4", fontsize=8)
    cost.minorticks_off()
    cost.set_xticks(m.lengths, map(str, m.lengths))
    figure.legend(*load.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def judge(m: Measured) -> Verdict:
    """Waiting, time and forgetting, each by its own figure."""
    lstm, looking, transformer = m.arms
    waits = lstm.chain[-1] - lstm.chain[0] > transformer.chain[-1] - transformer.chain[0]
    ratio = lstm.milliseconds[-1] / transformer.milliseconds[-1]
    near, far = map(fmean, near_and_far(lstm))
    a, b, c = (fmean(map(fmean, arm.by_load)) for arm in m.arms)
    few, many = (fmean(row[index] for row in lstm.by_load) for index in (0, -1))
    worse, distant = c - a > CLEAR, near - far > CLEAR
    because = Words(
        f"Over {m.lengths[-1]} tokens an LSTM has {lstm.chain[-1]} products in a row and the "
        f"Transformer {transformer.chain[-1]}; its training step took {ratio:.1f} times the "
        f"Transformer's time on this CPU. It recalls {near:.0f} % of near and {far:.0f} % of far "
        f"pairs, {few:.0f} % of {LOADS[0]} and {many:.0f} % of {LOADS[-1]} pairs. In all the LSTM "
        f"recalls {a:.0f} %, the Transformer {c:.0f} %, and an LSTM with attention {b:.0f} %, with "
        f"{looking.chain[-1]} products in a row.",
        f"读 {m.lengths[-1]} 个词元，LSTM 有 {lstm.chain[-1]} 次矩阵乘法必须依次进行，"
        f"Transformer 有 {transformer.chain[-1]} 次；在本机 CPU 上，LSTM 训练一步的用时是后者的 "
        f"{ratio:.1f} 倍。LSTM 对近处的键值对答对 {near:.0f}%，远处的 {far:.0f}%；"
        f"要记 {LOADS[0]} 对时答对 {few:.0f}%，{LOADS[-1]} 对时 {many:.0f}%；总共答对 {a:.0f}%，"
        f"Transformer {c:.0f}%，LSTM 加上注意力 {b:.0f}%（要依次做 {looking.chain[-1]} 次乘法）。",
    )
    if not waits or not (worse or distant or ratio > 1):
        return Verdict("does not hold", because)
    if worse and distant and ratio > 1:
        return Verdict("holds", because)
    return Verdict("holds when", _conditions(because, ratio, worse, distant))


def _conditions(because: Words, ratio: float, worse: bool, distant: bool) -> Words:
    """Say first which part of the claim the figures support."""
    parts = [
        (True, Words("it waits token by token", "确实要一个词一个词地等")),
        (ratio <= 1, Words("which cost no time on this CPU", "但在本机 CPU 上没有因此更慢")),
        (distant, Words("it forgets what is far", "离得远的确实会忘")),
        (
            worse and not distant,
            Words(
                "it forgets where much must be kept, near and far alike",
                "要记的多了确实会忘，与远近无关",
            ),
        ),
        (
            not worse,
            Words(
                "but in all it recalls as much as a Transformer",
                "但总的来说记得不比 Transformer 少",
            ),
        ),
    ]
    said = [words for true, words in parts if true]
    return Words(
        f"In part, at this size: {', '.join(words.en for words in said)}. {because.en}",
        f"在这样的规模上部分成立：{'，'.join(words.zh for words in said)}。{because.zh}",
    )


LAB = Lab(
    number=13,
    name="recurrent",
    title=Words("Recurrent nets and the Transformer", "循环网络与 Transformer"),
    claim=Words(
        "A recurrent net must read token by token, which cannot be done in parallel, and by the "
        "end it has forgotten the beginning; attention on top does not end the queue. The "
        "Transformer reads all at once, and every token is one step away.",
        "循环网络只能一个词一个词地读，没法并行，读到句末已经忘了开头；加上注意力，也还是要排队。"
        "Transformer 同时读入所有词，任意两个词之间只隔一步。",
    ),
    experiment=Words(
        "An LSTM, an LSTM with attention and a one-block Transformer of equal parameters. Counted "
        "from the graph: matrix products that must wait for one another. Timed: training steps "
        "over the same number of tokens, cut into longer and longer sequences. Learnt: to give the "
        "value of a key that stood among filler, by distance and by the number of pairs; same "
        f"sequences (up to {max(LENGTHS)} tokens) and steps, three seeds (five with --full), for "
        "each the better of two learning rates, chosen on the first seed.",
        "参数量相同的 LSTM、带注意力的 LSTM 与单层 Transformer。从计算图数出必须依次进行的"
        "矩阵乘法；在词元总数不变、序列越来越长时测训练一步的用时；学习在填充词中找回某个键"
        f"对应的值，按距离和键值对数量统计正确率。序列（不超过 {max(LENGTHS)} 个词元）与步数相同，"
        "三个随机种子（加 --full 为五个），各取两个学习率中较好的一个，由第一个种子选定。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
