"""Lab 18: what the way of choosing tokens does to quality, variety, length and log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from qkv.demo import demo_corpus
from qkv.evaluation import bleu, exact_match
from qkv.tasks import Translator
from qkv_labs import tools
from qkv_labs.figures import Figure, look, new_figure
from qkv_labs.lab import Interval, Settings, Table, Verdict, compare
from qkv_labs.shared import Pair, translator
from qkv_labs.texts import Texts

say = Texts("decoding")

WIDTHS = (1, 2, 4, 8, 16, 32)
PENALTIES = (0.0, 1.0)  # what the search ranks by: log P, or log P over length
TEMPERATURES = (0.3, 0.5, 0.7, 1.0, 1.3, 1.5)
DRAWS = 4
MODELS = {"well trained": (), "under-trained": ("train.steps=300",)}
SAMPLED: dict[str, dict[str, Any]] = {
    **{f"sampling, T = {heat}": {"temperature": heat} for heat in TEMPERATURES},
    "sampling, top-k 5": {"top_k": 5},
    "sampling, top-p 0.9": {"top_p": 0.9},
}
Candidates = Sequence[Sequence[tuple[str, float]]]  # of each sentence: text and log-probability


@dataclass(frozen=True)
class Row:
    """One way of decoding on one model."""

    model: str
    method: str
    width: int  # beams; 0 where tokens are sampled
    penalty: float
    temperature: float  # 0 where the likeliest is taken
    exact: float  # percent
    bleu: float
    log_probability: float  # mean of a sentence
    variety: float  # of two draws for a sentence, how often they differ, percent
    length: float  # words, over the reference's
    gained: int  # sentences right here and wrong in greedy search
    lost: int


@dataclass(frozen=True)
class Measured:
    """Every way of decoding on both models."""

    rows: list[Row]
    n_sentences: int


def variety(texts: Sequence[str]) -> float:
    """Return how often two of these texts differ, 0 to 1."""
    count = len(texts)
    pairs = count * (count - 1) / 2
    same = sum(texts[i] == texts[j] for i in range(count) for j in range(i))
    return 1 - same / pairs if pairs else 0.0


def right(candidates: Candidates, pairs: Sequence[Pair]) -> list[bool]:
    """Return whether the first candidate of each sentence is the reference."""
    return [texts[0][0] == target for texts, (_, target) in zip(candidates, pairs, strict=True)]


def score(
    candidates: Candidates, pairs: Sequence[Pair], greedy: Sequence[bool]
) -> dict[str, float]:
    """Score translations with their log-probabilities, some to each sentence."""
    outputs = [text for some in candidates for text, _ in some]
    references = [target for _, target in pairs for _ in range(len(candidates[0]))]
    changes = list(zip(right(candidates, pairs), greedy, strict=True))
    words = [sum(len(text.split()) for text in texts) for texts in (outputs, references)]
    return {
        "exact": exact_match(outputs, references).value,
        "bleu": bleu(outputs, references).value,
        "log_probability": fmean(value for some in candidates for _, value in some),
        "variety": 100 * fmean(variety([text for text, _ in some]) for some in candidates),
        "length": words[0] / words[1],
        "gained": sum(now and not before for now, before in changes),
        "lost": sum(before and not now for now, before in changes),
    }


def decode(subject: Translator, pairs: Sequence[Pair], **settings: Any) -> Candidates:
    """Translate each source, with log-probabilities."""
    best = subject.n_best([source for source, _ in pairs], **settings)
    return [[(output.text, output.log_probability) for output in outputs] for outputs in best]


def measure_model(name: str, subject: Translator, pairs: Sequence[Pair], seed: int) -> list[Row]:
    """Decode greedily, with beams of all widths under both rankings, and by sampling."""
    plain = decode(subject, pairs, beams=1)
    greedy = right(plain, pairs)

    def row(method: str, width: int, penalty: float, heat: float, candidates: Candidates) -> Row:
        figures: dict[str, Any] = score(candidates, pairs, greedy)
        return Row(name, method, width, penalty, heat, **figures)

    rows = [row("greedy", 1, penalty, 0.0, plain) for penalty in PENALTIES]
    for penalty in PENALTIES:
        for width in WIDTHS[1:]:
            candidates = decode(subject, pairs, beams=width, length_penalty=penalty)
            rows.append(row(f"beam {width}", width, penalty, 0.0, candidates))
    for method, how in SAMPLED.items():
        candidates = decode(subject, pairs, sample=True, n_best=DRAWS, seed=seed, **how)
        # the draws come back best first, so that the first is no fair sample of a single draw
        rows.append(row(method, 0, 0.0, how.get("temperature", 1.0), candidates))
    return rows


def measure(settings: Settings) -> Measured:
    """Decode the same held-out sentences in every way, with a good and with a poor model."""
    pairs, rows = demo_corpus().test[: settings.pick(200, 1000)], []
    for name, changes in MODELS.items():
        subject = translator(settings.tell, *changes)
        settings.tell(f"decoding with the {name} translator")
        rows += measure_model(name, subject, pairs, settings.seed)
    return Measured(rows, len(pairs))


def beams(m: Measured, model: str, penalty: float) -> list[Row]:
    """Return the rows of greedy and beam search of a model, by width."""
    rows = tools.where(m.rows, model=model, penalty=penalty)
    return sorted((row for row in rows if row.width), key=lambda row: row.width)


def draws(m: Measured, model: str) -> list[Row]:
    """Return the rows of a model's plain sampling, by temperature."""
    return [row for row in m.rows if row.model == model and row.method.startswith("sampling, T")]


def tables(m: Measured) -> list[Table]:
    """One table a model."""

    def ranking(row: Row) -> str:
        return "" if row.width < 2 else "log P / length" if row.penalty else "log P"

    columns = {
        "method": "{0.method}",
        "ranked by": ranking,
        "exact %": "{0.exact:.1f}",
        "BLEU": "{0.bleu:.1f}",
        "log P": "{0.log_probability:.2f}",
        "variety %": "{0.variety:.0f}",
        "length": "{0.length:.3f}",
        "± greedy": lambda row: f"+{row.gained} −{row.lost}" if row.width else "",
    }
    result = []
    for name in MODELS:
        rows = tools.where(m.rows, model=name)
        rows = [row for row in rows if row.width != 1 or not row.penalty]  # greedy once
        result.append(say.table("rows", columns, rows, name=say.column(name), m=m))
    return result


def draw(m: Measured) -> Figure:
    """Left: log-probability by width. Middle: quality by width. Right: quality against variety."""
    figure, (left, middle, right) = new_figure(12, 3.8, ncols=3)
    for index, name in enumerate(MODELS):
        rows, style = beams(m, name, 0.0), look(index)
        rise = [row.log_probability - rows[0].log_probability for row in rows]
        widths = tools.column(rows, "width")
        left.plot(widths, rise, label=name, **style)
        middle.plot(widths, tools.column(rows, "bleu"), label=f"{name}, by log P", **style)
        by_length = tools.column(beams(m, name, 1.0), "bleu")
        hollow = {"linestyle": "--", "fillstyle": "none", "label": f"{name}, by log P / length"}
        middle.plot(widths, by_length, **hollow, **style)
        heats = draws(m, name)
        x, y = tools.column(heats, "variety"), tools.column(heats, "exact")
        right.plot(x, y, label=name, **style)
        for row in heats[::2]:
            shift = {"fontsize": 7, "xytext": (3, 4), "textcoords": "offset points"}
            right.annotate(f"{row.temperature:g}", (row.variety, row.exact), **shift)
    for axes in (left, middle):
        axes.set_xscale("log", base=2)
        axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
        axes.set_xlabel("beams (1: greedy)")
    left.set(ylabel="log P of the result over greedy's (nats)", title="How likely its result is")
    middle.set(ylabel="BLEU", title="How good its result is")
    right.set(xlabel="two draws that differ (%)", ylabel="exact match (%)")
    right.set_title("Sampling, by temperature (at the points)")
    for axes in (left, middle, right):
        axes.legend()
    return figure


def net_gain(row: Row) -> Interval:
    """Return sentences gained less lost against greedy, ± two standard errors of the sign test."""
    net, margin = row.gained - row.lost, 2 * math.sqrt(row.gained + row.lost)
    return Interval(net, net - margin, net + margin)


def judge(m: Measured) -> Verdict:
    """Do beams mend greedy's mistakes, ever more as they widen, and does sampling give variety?"""
    good, poor = (beams(m, name, 0.0) for name in MODELS)
    greedy, widest, best = poor[0], poor[-1], max(poor, key=lambda row: row.exact)
    cold, *_, hot = draws(m, "under-trained")
    ranked = beams(m, "under-trained", 1.0)[1:]
    heats = hot.method, cold.method

    def exact(row: Row, draws: int = 1) -> Interval:
        return Interval.share(row.exact, draws * m.n_sentences)

    return say.verdict(
        {"widest": widest.width, "best": best.width},
        mends=compare(net_gain(poor[2]), ">", 0, "under-trained", form=".0f"),
        sure=compare(net_gain(good[2]), ">", 0, "well trained", form=".0f"),
        wider=compare(exact(widest), ">", exact(best), (widest.method, best.method)),
        likelier=compare(widest.log_probability, ">", greedy.log_probability, form=".2f"),
        length=compare(net_gain(ranked[1]), ">", 0, form=".0f"),
        variety=compare(hot.variety, ">", cold.variety, heats, form=".0f"),
        price=compare(exact(hot, DRAWS), "≈", exact(cold, DRAWS), heats, margin=5),
    )


LAB = say.make_lab(measure, tables, draw, judge)
