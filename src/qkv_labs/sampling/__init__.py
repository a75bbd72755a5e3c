"""Lab 23: temperature, top-k and top-p: what variety costs in correctness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import complete
from qkv.model import Decoder
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, look, new_figure
from qkv_labs.lab import Figures, Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("sampling")

PAD, BOS, EOS = 0, 1, 2
N_SUBJECTS, N_VERBS, N_OBJECTS = 8, 8, 64  # each verb takes objects of its own, few or many
SUBJECTS = range(3, 3 + N_SUBJECTS)
VERBS = range(SUBJECTS.stop, SUBJECTS.stop + N_VERBS)
OBJECTS = range(VERBS.stop, VERBS.stop + N_OBJECTS)
TAKEN = tuple(2 * 2 ** (verb % 4) for verb in range(N_VERBS))  # 2, 4, 8 or 16 objects
GREEDY = "greedy"
RULES: dict[str, dict[str, Any]] = {
    GREEDY: {"temperature": 0.0},
    **{f"T = {t:g}": {"temperature": t} for t in (0.3, 0.6, 0.8, 1.0, 1.5, 2.0)},
    **{f"top-k {k}": {"top_k": k} for k in (2, 4, 8, 12, 16, 32)},
    **{f"top-p {p:g}": {"top_p": p} for p in (0.3, 0.6, 0.8, 0.85, 0.9, 0.95)},
}
KINDS = ("T", "top-k", "top-p")
BESIDE = ((4, 3), (4, -8), (-14, -8))  # where a point's setting is written, by kind
POINTS = 2.2  # of type in a percent of an axis, about
CLOSE = (5.0, 3.5)  # percent: settings that are written closer than this cannot be read
SHARE = 0.8  # of what the language itself reaches: rules that reach less are not compared


@dataclass(frozen=True)
class Row:
    """Sentences drawn by one rule, in percent, one value a seed."""

    rule: str
    right: list[float]  # sentences of the language
    variety: list[float]  # different sentences among those drawn
    reach: list[float]  # of all sentences of the language, those drawn at least once


@dataclass(frozen=True)
class Measured:
    """All rules, and sentences of the language itself for comparison."""

    n_drawn: int
    rows: list[Row]
    variety: list[float]  # of as many sentences of the language
    reach: list[float]


def grammar() -> dict[int, tuple[int, ...]]:
    """Return which objects each verb takes; verbs may share some."""
    random = Random(0)
    return {
        verb: tuple(random.sample(OBJECTS, taken)) for verb, taken in zip(VERBS, TAKEN, strict=True)
    }


def sentences(n: int, random: Random) -> list[tuple[int, int, int]]:
    """Draw sentences: a subject, a verb and an object that the verb takes."""
    objects = grammar()
    verbs = random.choices(VERBS, k=n)
    return [(random.choice(SUBJECTS), verb, random.choice(objects[verb])) for verb in verbs]


def learn(seed: int, steps: int) -> Decoder:
    """Train a small language model on sentences of the language."""
    model = tools.decoder(
        OBJECTS.stop, 32, 1, seed, max_length=8, pad_id=PAD, bos_id=BOS, eos_id=EOS
    )
    random = Random(seed)

    def loss(step: int) -> Tensor:
        rows = torch.tensor([[BOS, *words, EOS] for words in sentences(64, random)])
        return tools.token_loss(model(rows[:, :-1]), rows[:, 1:])

    tools.fit(model, loss, steps)
    return model.eval()


def draw_sentences(model: Decoder, rules: dict[str, Any], n: int) -> list[tuple[int, ...]]:
    """Draw sentences from a model by these rules."""
    config = DecodeConfig(sample=True, max_length=6, **rules)
    drawn = complete(model, [[BOS]] * n, config)
    return [tuple(hypotheses[0].tokens) for hypotheses in drawn]


def right(words: Sequence[int]) -> bool:
    """Return whether a sentence is one of the language."""
    if len(words) != 3 or words[0] not in SUBJECTS or words[1] not in VERBS:
        return False
    return words[2] in grammar()[words[1]]


def scores(drawn: Sequence[Sequence[int]]) -> tuple[float, float, float]:
    """Return how many are right, how many differ, and how much of the language is reached, %."""
    hits = [tuple(words) for words in drawn if right(words)]
    return (
        100 * len(hits) / len(drawn),
        100 * len(set(map(tuple, drawn))) / len(drawn),
        100 * len(set(hits)) / (N_SUBJECTS * sum(TAKEN)),
    )


def measure(settings: Settings) -> Measured:
    """Learn the language with each seed, and draw from each model by every rule."""
    n = settings.pick(1000, 5000)
    found: dict[str, list[tuple[float, float, float]]] = {rule: [] for rule in RULES}
    real = []
    for seed in settings.seeds(3, 5):
        settings.tell(f"seed {seed}")
        model = learn(seed, settings.pick(200, 600))
        for rule, rules in RULES.items():
            found[rule].append(scores(draw_sentences(model, {**rules, "seed": seed}, n)))
        real.append(scores(sentences(n, Random(10_000 + seed))))
    rows = [Row(rule, *map(list, zip(*values, strict=True))) for rule, values in found.items()]
    return Measured(n, rows, [values[1] for values in real], [values[2] for values in real])


def tables(m: Measured) -> list[Table]:
    """Correctness, variety and reach of each rule."""
    itself = Row("the language itself", [100.0], m.variety, m.reach)
    columns = {
        "rule": "{0.rule}",
        "right": lambda row: tools.plus_minus(row.right),
        "different": lambda row: tools.plus_minus(row.variety),
        "reached": lambda row: tools.plus_minus(row.reach),
    }
    return [say.table("drawn", columns, [*m.rows, itself], m=m)]


def of_kind(m: Measured, kind: str) -> list[Row]:
    """Return the rows of one kind of rule, from the narrowest to the widest."""
    return [row for row in m.rows if row.rule.startswith(f"{kind} ")]


def draw(m: Measured) -> Figure:
    """Correctness against variety and against reach, a line a kind of rule."""
    figure, axes = new_figure(9.5, 3.8, ncols=2)
    for panel, name, label in zip(
        axes,
        ("variety", "reach"),
        ("different sentences (%)", "sentences of the language reached (%)"),
        strict=True,
    ):
        written: list[Any] = []  # where; the table has what finds no room
        for index, kind in enumerate(KINDS):
            rows = of_kind(m, kind)
            x, y = (
                [tools.mean_and_spread(getattr(row, field))[0] for row in rows]
                for field in (name, "right")
            )
            panel.plot(x, y, label=kind, **look(index))
            style = {"color": COLOURS[index], "textcoords": "offset points", "fontsize": 7}
            for row, *point in zip(rows, x, y, strict=True):
                place = point + np.array(BESIDE[index]) / POINTS
                if all((abs(place - other) > CLOSE).any() for other in written):
                    panel.annotate(row.rule.split()[-1], point, xytext=BESIDE[index], **style)
                    written.append(place)
        at = tools.mean_and_spread(getattr(m, name))[0]
        panel.axvline(at, color="0.6", ls=":", label="the language itself")
        panel.set(xlabel=label, ylabel="right sentences (%)", ylim=(0, 103), xlim=(0, 103))
    axes[0].set_title("What variety costs")
    axes[1].set_title("What reach costs")
    axes[0].legend(loc="lower left")
    return figure


def best_reaching(m: Measured, kind: str, reach: float) -> Row:
    """Return the rule of a kind that is right most often among those that reach so much."""
    rows = [row for row in of_kind(m, kind) if fmean(row.reach) >= reach]
    return max(rows or of_kind(m, kind), key=lambda row: fmean(row.right))


def judge(m: Measured) -> Verdict:
    """What does variety cost, and which rule gets most of it rightly?"""
    right, variety, reached = (
        Figures({row.rule: Interval.percent(getattr(row, name)) for row in m.rows})
        for name in ("right", "variety", "reach")
    )
    reach = SHARE * fmean(m.reach)
    heat, top_k, top_p = (best_reaching(m, kind, reach).rule for kind in KINDS)
    return say.verdict(
        {"share": SHARE},
        greedy=[compare(variety[GREEDY], "<", 1, form=".2f"), compare(right[GREEDY], ">", 99)],
        variety=variety.compare("T = 1.5", ">", "T = 0.3"),
        price=right.compare("T = 2", "<", "T = 0.6"),
        plain=right.compare("T = 1", ">", 99),
        top_p=right.compare(top_p, ">", top_k),
        temperature=right.compare(top_p, ">", heat),
        top_k=reached.compare("top-k 4", "<", "top-p 0.9"),
    )


LAB = say.make_lab(measure, tables, draw, judge, values={"verbs": N_VERBS, "objects": N_OBJECTS})
