"""Lab 9: what many narrow heads can do that one wide head cannot, and how many are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from qkv.demo import demo_corpus
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, error_bars, look, new_figure
from qkv_labs.heads import roles
from qkv_labs.heads.roles import NO_ROLE, ORDERS, Exam, HeadRole, Silenced
from qkv_labs.lab import Interval, Settings, Table, Verdict, compare
from qkv_labs.shared import translator
from qkv_labs.texts import Texts

say = Texts("heads")

HEADS = (1, 2, 4, 8, 16)
N_SYMBOLS = LENGTH = 16
D_MODEL = 64
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++")
MANY = 4  # lookups at once; a single one is the control
OFFSETS = {1: (3,), 2: (1, 4), 4: (1, 3, 4, 6), 8: (1, 2, 4, 5, 7, 9, 12, 14)}


@dataclass(frozen=True)
class Lookup:
    """How well one layer answers several lookups at once, one value a seed."""

    relations: int
    heads: int
    parameters: int
    accuracies: list[float]  # percent of all lookups


@dataclass(frozen=True)
class Measured:
    """Lookups by number of heads, the translator's heads, and what it does without them."""

    lookups: list[Lookup]
    heads: list[HeadRole]
    curve: list[Silenced]
    n_sentences: int


def look_up(relations: int, heads: int, seed: int, steps: int) -> tuple[float, int]:
    """Train a layer to name the symbols at some distances; return percent right, and its size."""
    n_labels = relations * N_SYMBOLS
    positions = {"positions": "learned", "max_length": LENGTH, "embedding_scale": False}
    model = tools.encoder(
        N_SYMBOLS, D_MODEL, 1, seed, n_heads=heads, d_ff=D_MODEL, n_labels=n_labels, **positions
    )
    draws = torch.Generator().manual_seed(seed)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        symbols = torch.randint(N_SYMBOLS, (size, LENGTH), generator=draws)
        return model(symbols).unflatten(-1, (relations, N_SYMBOLS)), answers(symbols, relations)

    tools.fit(model, lambda step: tools.token_loss(*batch(32)), steps)
    with torch.no_grad():
        logits, labels = batch(512)
    return 100 * float((logits.argmax(-1) == labels).float().mean()), tools.n_weights(model)


def answers(symbols: Tensor, relations: int) -> Tensor:
    """Return the symbols at each distance before each one, round the end, (B, T, relations)."""
    return torch.stack([symbols.roll(offset, 1) for offset in OFFSETS[relations]], dim=-1)


def measure(settings: Settings) -> Measured:
    """Answer lookups with 1 to 16 heads; then silence the translator's heads."""
    settings.tell("one layer, several lookups at once")
    lookups, steps = [], settings.pick(400, 800)
    for relations, heads in product(settings.pick((1, MANY), (1, 2, 4, 8)), HEADS):
        runs = [look_up(relations, heads, seed, steps) for seed in settings.seeds(3, 5)]
        lookups.append(Lookup(relations, heads, runs[0][1], [right for right, _ in runs]))
    subject, corpus, size = translator(settings.tell), demo_corpus(), settings.pick(150, 300)
    settings.tell("what each head of the translator looks at")
    exam = Exam(subject, corpus.test[:size])
    heads_of = roles.find_roles(subject, corpus.valid[:size], exam)
    settings.tell("silencing heads one after another")
    order = roles.least_important_first(Exam(subject, corpus.valid[:60]))
    curve = roles.silencing_curves(exam, order, settings.seed, step=settings.pick(2, 1))
    return Measured(lookups, heads_of, curve, size)


def tables(m: Measured) -> list[Table]:
    """Accuracy by heads, the translator's heads, and what remains when they go."""
    relations = sorted({lookup.relations for lookup in m.lookups})
    cells = {(x.relations, x.heads): tools.plus_minus(x.accuracies) for x in m.lookups}
    right = [(f"{h} × {D_MODEL // h}", *(cells[n, h] for n in relations)) for h in HEADS]
    heads = {
        "attention": "{0.where}",
        "head": "{0.head}",
        "looks mostly at": "{0.role}",
        "share": "{0.share:.2f}",
        "even share": "{0.chance:.2f}",
        "loss +": "{0.loss_rise:+.3f}",
        "exact %": "{0.exact_match:.1f}",
    }
    exact = {(x.order, x.count): f"{x.exact_match:.1f}" for x in m.curve}
    counts = sorted({x.count for x in m.curve})
    left = [(str(n), *(exact[order, n] for order in ORDERS)) for n in counts]
    widths = ("heads × width", *(f"{n} at once" for n in relations))
    return [
        say.table("right", widths, right, chance=100 / N_SYMBOLS),
        say.table("heads", heads, m.heads),
        say.table("left", ("silenced", *ORDERS), left, m=m),
    ]


def draw(m: Measured) -> Figure:
    """Left: lookups by heads. Middle: what each head costs. Right: how many can go."""
    figure, (left, middle, right) = new_figure(12, 4.8, ncols=3)
    for index, relations in enumerate(sorted({lookup.relations for lookup in m.lookups})):
        lookups = tools.where(m.lookups, relations=relations)
        label = f"{relations} at once" if relations > 1 else "a single one"
        heads, samples = tools.column(lookups, "heads"), tools.column(lookups, "accuracies")
        error_bars(left, heads, samples, index, label)
    means = {x.heads: fmean(x.accuracies) for x in tools.where(m.lookups, relations=MANY)}
    best = max(means, key=means.__getitem__)
    left.set_xscale("log", base=2)
    left.set_xticks(HEADS, [f"{n}×{D_MODEL // n}" for n in HEADS])
    left.set(xlabel="heads × width (same cost)", ylabel="lookups right (%)", ylim=(0, 105))
    left.set_title(f"{MANY} at once: {means[1]:.0f} % with 1 head, {means[best]:.0f} % with {best}")
    left.legend(loc="lower right")
    _draw_heads(middle, m.heads)
    for index, order in enumerate(ORDERS):
        points = tools.where(m.curve, order=order)
        x, y = tools.column(points, "count"), tools.column(points, "exact_match")
        right.plot(x, y, label=order, **look(index))
    right.set(xlabel="heads silenced", ylabel="exact match (%)", ylim=(0, 105))
    right.set_title(f"{spared(m, 0.95)} of {len(m.heads)} heads can go for 5 %")
    right.legend()
    return figure


def _draw_heads(axes: Any, heads: Sequence[HeadRole]) -> None:
    """Draw a bar a head, coloured and hatched by its role."""
    for index, role in enumerate(sorted({head.role for head in heads})):
        rows = [row for row, head in enumerate(heads) if head.role == role]
        style = {"color": COLOURS[index], "hatch": HATCHES[index], "edgecolor": "white"}
        axes.barh(rows, [heads[row].loss_rise for row in rows], label=role, **style)
    names = [f"{head.where}, {head.head}" for head in heads]
    axes.set_yticks(range(len(heads)), names, fontsize=6)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="loss added when silenced alone (nats a token)", title="What each head does")
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
    axes.legend(title="looks mostly at", title_fontsize=8, ncols=3, **below)


def spared(m: Measured, kept: float) -> int:
    """Return the most heads that can be silenced while this share of exact matches stays."""
    curve = tools.where(m.curve, order=ORDERS[0])
    return max(x.count for x in curve if x.exact_match >= kept * curve[0].exact_match)


def judge(m: Measured) -> Verdict:
    """Do several heads beat one, on one lookup too, and does each head do something of its own?"""
    right = {(x.relations, x.heads): Interval.percent(x.accuracies) for x in m.lookups}
    sizes = tools.column(tools.where(m.lookups, relations=MANY), "parameters")
    with_role = 100 * sum(head.role != NO_ROLE for head in m.heads) / len(m.heads)
    few = tools.where(m.curve, order=ORDERS[0], count=len(m.heads) // 3)[0]
    most = tools.where(m.curve, order=ORDERS[2], count=len(m.heads) // 6)[0]
    half = tools.where(m.curve, order=ORDERS[0])[0].exact_match / 2
    widths = ("4 × 16", "1 × 64")
    left_few, left_most = (Interval.share(x.exact_match, m.n_sentences) for x in (few, most))
    return say.verdict(
        {"many": MANY, "n": few.count, "total": len(m.heads), "vital_n": most.count},
        several=compare(right[MANY, MANY], ">", right[MANY, 1], widths),
        single=compare(right[1, MANY], ">", right[1, 1], widths),
        cost=compare(max(sizes), "≈", min(sizes), form=".0f"),
        roles=compare(Interval.share(with_role, len(m.heads)), ">", 50, form=".0f"),
        spare=compare(left_few, "<", half, form=".0f"),
        vital=compare(left_most, "<", half, form=".0f"),
    )


LAB = say.make_lab(measure, tables, draw, judge)
