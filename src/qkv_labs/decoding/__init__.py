"""Lab 18: what the way of choosing tokens does to quality, variety, length and log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from qkv.data import Pair
from qkv.demo import demo_corpus
from qkv.evaluate import bleu, exact_match
from qkv.inspect.style import COLOURS, MARKERS, new_figure
from qkv.tasks import Translator
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.shared import translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@dataclass(frozen=True)
class Row:
    """One way of decoding on one model."""

    model: str
    method: str
    width: int  # beams; 0 where tokens are drawn
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
    """All figures of this lab."""

    rows: list[Row]
    n_sentences: int


def variety(texts: Sequence[str]) -> float:
    """How often two of these texts differ, 0 to 1."""
    count = len(texts)
    pairs = count * (count - 1) / 2
    same = sum(texts[i] == texts[j] for i in range(count) for j in range(i))
    return 1 - same / pairs if pairs else 0.0


def score(
    found: Sequence[Sequence[tuple[str, float]]], pairs: Sequence[Pair], greedy: Sequence[bool]
) -> dict[str, float]:
    """Figures of translations with their log-probabilities, some to each sentence."""
    n_each = len(found[0])
    said = [text for some in found for text, _ in some]
    wanted = [target for _, target in pairs for _ in range(n_each)]
    first = [some[0][0] == target for some, (_, target) in zip(found, pairs, strict=True)]
    return {
        "exact": exact_match(said, wanted).value,
        "bleu": bleu(said, wanted).value,
        "log_probability": fmean(value for some in found for _, value in some),
        "variety": 100 * fmean(variety([text for text, _ in some]) for some in found),
        "length": sum(len(text.split()) for text in said)
        / sum(len(text.split()) for text in wanted),
        "gained": sum(now and not before for now, before in zip(first, greedy, strict=True)),
        "lost": sum(before and not now for now, before in zip(first, greedy, strict=True)),
    }


def decode(
    subject: Translator, pairs: Sequence[Pair], **settings: Any
) -> list[list[tuple[str, float]]]:
    """Translations of each source with their log-probabilities."""
    found = subject.n_best([source for source, _ in pairs], **settings)
    return [[(one.text, one.log_probability) for one in some] for some in found]


def measure_model(name: str, subject: Translator, pairs: Sequence[Pair], seed: int) -> list[Row]:
    """Greedy search, beams of all widths under both rankings, and draws."""
    plain = decode(subject, pairs, beams=1)
    greedy = [some[0][0] == target for some, (_, target) in zip(plain, pairs, strict=True)]

    def row(method: str, width: int, penalty: float, heat: float, found: Any) -> Row:
        figures: dict[str, Any] = score(found, pairs, greedy)
        return Row(name, method, width, penalty, heat, **figures)

    rows = [row("greedy", 1, penalty, 0.0, plain) for penalty in PENALTIES]
    for penalty in PENALTIES:
        for width in WIDTHS[1:]:
            found = decode(subject, pairs, beams=width, length_penalty=penalty)
            rows.append(row(f"beam {width}", width, penalty, 0.0, found))
    for method, how in SAMPLED.items():
        found = decode(subject, pairs, sample=True, n_best=DRAWS, seed=seed, **how)
        # the draws come back best first, so that the first is no fair sample of a single draw
        rows.append(row(method, 0, 0.0, how.get("temperature", 1.0), found))
    return rows


def measure(settings: Settings) -> Measured:
    """Decode the same held-out sentences in every way, with a good and with a poor model."""
    pairs = demo_corpus().test[: 1000 if settings.full else 200]
    rows = []
    for name, changes in MODELS.items():
        subject = translator(settings.tell, *changes)
        settings.tell(f"decoding with the {name} translator")
        rows += measure_model(name, subject, pairs, settings.seed)
    return Measured(rows, len(pairs))


def beams(m: Measured, model: str, penalty: float) -> list[Row]:
    """The rows of greedy and beam search of a model, by width."""
    rows = [one for one in m.rows if one.model == model and one.width and one.penalty == penalty]
    return sorted(rows, key=lambda one: one.width)


def draws(m: Measured, model: str) -> list[Row]:
    """The rows of a model's plain sampling, by temperature."""
    return [one for one in m.rows if one.model == model and one.method.startswith("sampling, T")]


def tables(m: Measured) -> tuple[Table, ...]:
    """One table a model."""
    return tuple(
        Table(
            Words(
                f"The {name} translator, {m.n_sentences} sentences",
                f"{'训练充分' if name == 'well trained' else '训练不足'}的翻译模型，"
                f"{m.n_sentences} 句",
            ),
            ("method", "ranked by", "exact %", "BLEU", "log P", "variety %", "length", "± greedy"),
            tuple(
                (
                    one.method,
                    _ranking(one),
                    f"{one.exact:.1f}",
                    f"{one.bleu:.1f}",
                    f"{one.log_probability:.2f}",
                    f"{one.variety:.0f}",
                    f"{one.length:.3f}",
                    f"+{one.gained} −{one.lost}" if one.width else "",
                )
                for one in m.rows
                if one.model == name and (one.width != 1 or not one.penalty)
            ),
        )
        for name in MODELS
    )


def _ranking(row: Row) -> str:
    if row.width < 2:
        return ""
    return "log P / length" if row.penalty else "log P"


def draw(m: Measured) -> Figure:
    """Left: log-probability by width. Middle: quality by width. Right: quality against variety."""
    figure, (left, middle, right) = new_figure(12, 3.8, ncols=3)
    for style, name in enumerate(MODELS):
        rows = beams(m, name, 0.0)
        widths, look = (
            [one.width for one in rows],
            {"color": COLOURS[style], "marker": MARKERS[style]},
        )
        rise = [one.log_probability - rows[0].log_probability for one in rows]
        left.plot(widths, rise, **look, label=name)
        middle.plot(widths, [one.bleu for one in rows], **look, label=f"{name}, by log P")
        other = beams(m, name, 1.0)
        middle.plot(
            widths,
            [one.bleu for one in other],
            **look,
            linestyle="--",
            fillstyle="none",
            label=f"{name}, by log P / length",
        )
        heats = draws(m, name)
        right.plot([one.variety for one in heats], [one.exact for one in heats], **look, label=name)
        for one in heats[::2]:
            right.annotate(
                f"{one.temperature:g}",
                (one.variety, one.exact),
                fontsize=7,
                xytext=(3, 4),
                textcoords="offset points",
            )
    for axes in (left, middle):
        axes.set_xscale("log", base=2)
        axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
        axes.set_xlabel("beams (1: greedy)")
    left.set(
        ylabel="log P of the result over greedy's (nats)",
        title="How likely its result is",
    )
    middle.set(ylabel="BLEU", title="How good its result is")
    right.set(
        xlabel="two draws that differ (%)",
        ylabel="exact match (%)",
        title="Sampling, by temperature (at the points)",
    )
    for axes in (left, middle, right):
        axes.legend()
    return figure


def curse(rows: Sequence[Row]) -> tuple[Row, float]:
    """The best width by BLEU, and what the widest beam lost from there."""
    best = max(rows, key=lambda one: one.bleu)
    return best, best.bleu - rows[-1].bleu


def beats_greedy(row: Row) -> bool:
    """Whether gains outnumber losses by more than two standard errors (a sign test)."""
    return row.gained - row.lost > 2 * math.sqrt(row.gained + row.lost)


def judge(m: Measured) -> Verdict:
    """Beams must mend greedy's mistakes; whether always, and ever more, is the condition."""
    good, poor = (beams(m, name, 0.0) for name in MODELS)
    best, fall = curse(poor)
    # by model, then by ranking
    helped = [
        any(beats_greedy(one) for one in beams(m, name, penalty)[1:])
        for name in MODELS
        for penalty in PENALTIES
    ]
    because = _because(poor, good, draws(m, "under-trained"))
    if not any(helped):
        return Verdict("does not hold", because)
    if any(helped[:2]) and fall <= 0:
        return Verdict("holds", because)
    when = _when(any(helped[:2]), any(helped[2:]), best, fall)
    return Verdict("holds when", Words(when.en + because.en, when.zh + because.zh))


def _when(surely: bool, unsurely: bool, best: Row, fall: float) -> Words:
    """Which model is helped, and what beams wider than the best one do (1 BLEU is harm)."""
    en, zh = [], []
    if surely != unsurely:
        which = ("well trained", "已训练充分") if surely else ("unsure", "还没有把握")
        en.append(f"Holds when the model is {which[0]}. ")
        zh.append(f"条件是模型{which[1]}。")
    if fall > 0:
        harm = fall >= 1.0
        does = "make it worse" if harm else "find text that is no better"
        en.append(f"Holds up to {best.width} beams for the under-trained one; wider ones {does}. ")
        zh.append(
            f"对训练不足的模型，束宽不超过 {best.width} 时成立，再宽"
            + ("反而更差。" if harm else "译文也不会更好。")
        )
    return Words("".join(en), "".join(zh))


def _because(poor: Sequence[Row], good: Sequence[Row], heats: Sequence[Row]) -> Words:
    """The figures that the verdict rests on."""
    greedy, widest, best = poor[0], poor[-1], curse(poor)[0]
    rise, cold, hot = widest.log_probability - greedy.log_probability, heats[0], heats[-1]
    return Words(
        f"With the under-trained translator, {widest.width} beams change log P by {rise:+.2f} nats "
        f"a sentence against greedy search; BLEU goes from {greedy.bleu:.1f} to {best.bleu:.1f} at "
        f"{best.width} beams and {widest.bleu:.1f} at {widest.width} (exact {greedy.exact:.1f}, "
        f"{best.exact:.1f}, {widest.exact:.1f} %); the well trained one goes from "
        f"{good[0].bleu:.1f} to {good[-1].bleu:.1f}. Sampling at T = {cold.temperature:g} to "
        f"{hot.temperature:g} takes variety from {cold.variety:.0f} to {hot.variety:.0f} % and "
        f"exact match from {cold.exact:.0f} to {hot.exact:.0f} %.",
        f"训练不足的模型，束宽 {widest.width} 时每句的对数概率与贪心相差 {rise:+.2f}；"
        f"BLEU 在贪心时为 {greedy.bleu:.1f}，束宽 {best.width} 时为 {best.bleu:.1f}，"
        f"束宽 {widest.width} 时为 {widest.bleu:.1f}（完全匹配率依次为 {greedy.exact:.1f}%、"
        f"{best.exact:.1f}%、{widest.exact:.1f}%）；训练充分的模型由 {good[0].bleu:.1f} 变为 "
        f"{good[-1].bleu:.1f}。采样温度从 {cold.temperature:g} 升到 {hot.temperature:g}，"
        f"多样性由 {cold.variety:.0f}% 变为 {hot.variety:.0f}%，"
        f"完全匹配率由 {cold.exact:.0f}% 变为 {hot.exact:.0f}%。",
    )


LAB = Lab(
    number=18,
    name="decoding",
    title=Words("Greedy, sampled, or searched", "贪心、采样与束搜索"),
    claim=Words(
        "Taking the likeliest token each time is steady, but one wrong choice spoils the rest, "
        "which a search over several candidates should mend; drawing at random gives variety.",
        "每步取概率最大的词最稳，但一步选错、后面全错，同时保留几个候选的束搜索应能补救；"
        "按概率采样则更多样。",
    ),
    experiment=Words(
        "The same held-out sentences are translated greedily, with 2 to 32 beams (ranked by log P "
        "and by log P over length), and by sampling at six temperatures, top-k and top-p, four "
        "draws each; by the packaged translator and by one trained for a quarter of the steps.",
        "用贪心、束宽 2 到 32 的束搜索（分别按对数概率和按长度平均的对数概率排序）、"
        "六种温度以及 top-k、top-p 采样（每句四次）翻译同一批没见过的句子，"
        "模型有两个：内置翻译模型，以及只训练四分之一步数的模型。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
