"""Lab 9: what many narrow heads can do that one wide head cannot, and how many are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config import ModelConfig
from qkv.demo import demo_corpus
from qkv.inspect.style import COLOURS, MARKERS, new_figure
from qkv.model import build_model
from qkv_labs.head_roles import (
    NO_ROLE,
    ORDERS,
    Exam,
    HeadRole,
    Silenced,
    find_roles,
    least_important_first,
    silencing_curves,
)
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.shared import translator
from qkv_labs.tools import fit, mean_and_spread, n_weights, plus_minus, seeded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS = (1, 2, 4, 8, 16)
N_SYMBOLS = LENGTH = 16
D_MODEL = 64
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++")
MANY = 4  # lookups at once; a single one is the control
OFFSETS = {1: (3,), 2: (1, 4), 4: (1, 3, 4, 6), 8: (1, 2, 4, 5, 7, 9, 12, 14)}


@dataclass(frozen=True)
class Lookup:
    """How well one layer finds several things at once, a figure a seed."""

    relations: int
    heads: int
    parameters: int
    accuracies: list[float]  # percent of all lookups


@dataclass(frozen=True)
class Measured:
    """All figures of this lab."""

    lookups: list[Lookup]
    heads: list[HeadRole]
    curve: list[Silenced]
    n_sentences: int


def look_up(relations: int, heads: int, seed: int, steps: int) -> tuple[float, int]:
    """Train a layer to name the symbols at some distances from each; % right, and its size."""
    with seeded(seed):
        model = build_model(
            ModelConfig(
                family="encoder",
                vocab_size=N_SYMBOLS,
                d_model=D_MODEL,
                n_heads=heads,
                d_ff=D_MODEL,
                n_encoder_layers=1,
                n_decoder_layers=0,
                positions="learned",
                max_length=LENGTH,
                head="token",
                n_labels=relations * N_SYMBOLS,
                dropout=0.0,
                norm_position="pre",
                embedding_scale=False,
            )
        )
    draws = torch.Generator().manual_seed(seed)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        symbols = torch.randint(N_SYMBOLS, (size, LENGTH), generator=draws)
        return model(symbols).unflatten(-1, (relations, N_SYMBOLS)), answers(symbols, relations)

    def loss(step: int) -> Tensor:
        logits, wanted = batch(32)
        return F.cross_entropy(logits.flatten(0, 2), wanted.flatten())

    fit(model.parameters(), loss, steps)
    with torch.no_grad():
        logits, wanted = batch(512)
    right = 100 * float((logits.argmax(-1) == wanted).float().mean())
    return right, n_weights(model)


def answers(symbols: Tensor, relations: int) -> Tensor:
    """The symbols so many places before each one, round the end, (B, T, relations)."""
    return torch.stack([symbols.roll(offset, 1) for offset in OFFSETS[relations]], dim=-1)


def lookup_curves(relations: Sequence[int], seeds: int, steps: int, first: int) -> list[Lookup]:
    """The same for each number of heads, on several seeds."""
    found = []
    for wanted, heads in product(relations, HEADS):
        runs = [look_up(wanted, heads, seed, steps) for seed in range(first, first + seeds)]
        found.append(Lookup(wanted, heads, runs[0][1], [right for right, _ in runs]))
    return found


def measure(settings: Settings) -> Measured:
    """Look several things up with 1 to 16 heads; then take the translator's heads away."""
    settings.tell("one layer, several lookups at once")
    relations, seeds, steps = ((1, 2, 4, 8), 5, 800) if settings.full else ((1, 4), 3, 400)
    lookups = lookup_curves(relations, seeds, steps, settings.seed)
    subject, corpus = translator(settings.tell), demo_corpus()
    size = 300 if settings.full else 150
    settings.tell("what each head of the translator looks at")
    exam = Exam(subject, corpus.test[:size])
    heads = find_roles(subject, corpus.valid[:size], exam)
    settings.tell("silencing heads one after another")
    every = [(place, head) for place, part in enumerate(exam.parts) for head in range(part.n_heads)]
    order = least_important_first(Exam(subject, corpus.valid[:60]), every)
    curve = silencing_curves(exam, order, settings.seed, step=1 if settings.full else 2)
    return Measured(lookups, heads, curve, size)


def tables(m: Measured) -> tuple[Table, ...]:
    """Accuracy by heads, the translator's heads, and what remains when they go."""
    relations = sorted({one.relations for one in m.lookups})
    cells = {(one.relations, one.heads): plus_minus(one.accuracies) for one in m.lookups}
    by_order = {(one.order, one.count): one for one in m.curve}
    counts = sorted({one.count for one in m.curve})
    return (
        Table(
            Words(
                f"Lookups answered rightly, % (chance {100 / N_SYMBOLS:.1f})",
                f"查找答对的比例，%（随机猜测为 {100 / N_SYMBOLS:.1f}）",
            ),
            ("heads × width", *(f"{n} at once" for n in relations)),
            tuple(
                (f"{heads} × {D_MODEL // heads}", *(cells[n, heads] for n in relations))
                for heads in HEADS
            ),
        ),
        Table(
            Words("The translator's heads, each silenced alone", "翻译模型的各个头，逐个屏蔽"),
            ("attention", "head", "looks mostly at", "share", "even share", "loss +", "exact %"),
            tuple(
                (
                    one.where,
                    str(one.head),
                    one.role,
                    f"{one.share:.2f}",
                    f"{one.chance:.2f}",
                    f"{one.loss_rise:+.3f}",
                    f"{one.exact_match:.1f}",
                )
                for one in m.heads
            ),
        ),
        Table(
            Words(
                f"Exact match with heads silenced, %, {m.n_sentences} sentences",
                f"屏蔽若干头之后的完全匹配率，%，{m.n_sentences} 句",
            ),
            ("silenced", *ORDERS),
            tuple(
                (str(n), *(f"{by_order[order, n].exact_match:.1f}" for order in ORDERS))
                for n in counts
            ),
        ),
    )


def draw(m: Measured) -> Figure:
    """Left: lookups by heads. Middle: what each head costs. Right: how many can go."""
    figure, (left, middle, right) = new_figure(12, 4.8, ncols=3)
    for style, relations in enumerate(sorted({one.relations for one in m.lookups})):
        some = [one for one in m.lookups if one.relations == relations]
        means, spreads = zip(*(mean_and_spread(one.accuracies) for one in some), strict=True)
        name = f"{relations} at once" if relations > 1 else "a single one"
        left.errorbar(
            [one.heads for one in some],
            means,
            yerr=spreads,
            capsize=3,
            label=name,
            color=COLOURS[style],
            marker=MARKERS[style],
        )
    gain, best, alone, _ = _gain(m, MANY)
    title = f"{MANY} at once: {alone:.0f} % with 1 head, {alone + gain:.0f} % with {best}"
    left.set_xscale("log", base=2)
    left.set_xticks(HEADS, [f"{n}×{D_MODEL // n}" for n in HEADS])
    left.set(
        xlabel="heads × width (same cost)", ylabel="lookups right (%)", ylim=(0, 105), title=title
    )
    left.legend(loc="lower right")
    _draw_heads(middle, m.heads)
    for style, order in enumerate(ORDERS):
        points = [one for one in m.curve if one.order == order]
        right.plot(
            [one.count for one in points],
            [one.exact_match for one in points],
            color=COLOURS[style],
            marker=MARKERS[style],
            label=order,
        )
    right.set(
        xlabel="heads silenced",
        ylabel="exact match (%)",
        ylim=(0, 105),
        title=f"{spared(m, 0.95)} of {len(m.heads)} heads can go for 5 %",
    )
    right.legend()
    return figure


def _draw_heads(axes: Axes, heads: Sequence[HeadRole]) -> None:
    """A bar a head, coloured and hatched by its role."""
    roles = sorted({one.role for one in heads})
    for style, role in enumerate(roles):
        rows = [row for row, one in enumerate(heads) if one.role == role]
        axes.barh(
            rows,
            [heads[row].loss_rise for row in rows],
            color=COLOURS[style],
            hatch=HATCHES[style],
            edgecolor="white",
            label=role,
        )
    axes.set_yticks(range(len(heads)), [f"{one.where}, {one.head}" for one in heads], fontsize=6)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="loss added when silenced alone (nats a token)", title="What each head does")
    axes.legend(
        title="looks mostly at",
        title_fontsize=8,
        ncols=3,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
    )


def spared(m: Measured, kept: float) -> int:
    """The most heads that can be silenced while such a share of the exact matches stays."""
    curve = [one for one in m.curve if one.order == ORDERS[0]]
    return max(one.count for one in curve if one.exact_match >= kept * curve[0].exact_match)


def judge(m: Measured) -> Verdict:
    """Several heads must beat one by more than the spread; then, whether on one lookup too."""
    gain, best, alone, noise = _gain(m, MANY)
    control = _gain(m, 1)[0]
    few_lost, some_lost, total = spared(m, 0.99), spared(m, 0.95), len(m.heads)
    roles = sum(one.role != NO_ROLE for one in m.heads)
    figures = (
        f"Looking {MANY} things up at once, one head gets {alone:.0f} % right and {best} heads of "
        f"the same total cost {alone + gain:.0f} %; a single lookup gains {control:+.0f} points "
        f"from more heads. In the translator {roles} of {total} heads look mostly at one thing, "
        f"and {few_lost} can be silenced together for 1 % of exact matches, {some_lost} for 5 %."
    )
    figures_zh = (
        f"同时查找 {MANY} 样东西时，一个头答对 {alone:.0f}%，总开销相同的 {best} 个头答对 "
        f"{alone + gain:.0f}%；只查一样东西时，多头带来的变化是 {control:+.0f} 个百分点。"
        f"翻译模型的 {total} 个头里有 {roles} 个主要只看一样东西，"
        f"允许完全匹配率损失 1%，可以同时屏蔽 {few_lost} 个；允许损失 5%，可以屏蔽 {some_lost} 个。"
    )
    # five points, and twice the seeds' spread, are the least that counts
    if gain < max(5.0, 2 * noise):
        return Verdict("does not hold", Words(figures, figures_zh))
    if control >= 5.0:
        return Verdict("holds", Words(figures, figures_zh))
    return Verdict(
        "holds when",
        Words(
            "Holds when a token needs several things at once. " + figures,
            "一个词同时需要好几样信息时才成立。" + figures_zh,
        ),
    )


def _gain(m: Measured, relations: int) -> tuple[float, int, float, float]:
    """What the best number of heads adds to a single one, that number, the latter, the spread."""
    figures = {
        one.heads: mean_and_spread(one.accuracies)
        for one in m.lookups
        if one.relations == relations
    }
    best = max(figures, key=lambda heads: figures[heads][0])
    alone = figures[1][0]
    return figures[best][0] - alone, best, alone, max(figures[best][1], figures[1][1])


LAB = Lab(
    number=9,
    name="heads",
    title=Words("How many heads?", "要多少个头？"),
    claim=Words(
        "A single attention must blend different kinds of relation into one average. Several heads "
        "of a fraction of the width each look at something else, at the same total cost.",
        "单个注意力只能把不同的关系混成一个平均；把同样的宽度分给几个头，"
        "就能各看各的，而总计算量不变。",
    ),
    experiment=Words(
        "One encoder layer names, at each place, the symbols at 1 or at 4 distances from it, with "
        "1 to 16 heads of the same total width: same parameters, data, steps and seeds. Then "
        "each head of the packaged translator is described by what its weights fall on, and heads "
        "are silenced alone and together (order chosen on validation, measured on test sentences).",
        "让一层编码器在每个位置说出与它相距 1 种或 4 种距离的符号，头数从 1 到 16、总宽度不变，"
        "参数量、数据、步数都相同，各跑几个种子。然后统计内置翻译模型每个头的注意力落在哪里，"
        "再逐个或成批地屏蔽（次序在验证集上定，效果在测试集上量）。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
