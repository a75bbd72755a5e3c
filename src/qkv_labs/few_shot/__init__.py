"""Lab 21: a language model is asked without examples, and after a few solved ones.

No weight is changed: the examples are in the prompt. A control gives the examples wrong answers,
which would not matter to a model that goes by their form alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import qkv
from qkv.tasks import Chooser, FewShot
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, look, new_figure
from qkv_labs.lab import Comparison, Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts, read

say = Texts("few_shot")

LABELS = ("negative", "positive")
SENTENCES = read("few_shot/sentences.toml")
TEMPLATES = {
    "review": FewShot(
        "Review: {text}\nSentiment:",
        " {label}",
        instruction="Say whether each review is positive or negative.",
        options=LABELS,
    ),
    "question": FewShot(
        "{text}\nIs this review positive or negative? It is", " {label}", options=LABELS
    ),
}
MAIN, OTHER = TEMPLATES
TRUE, WRONG = "right", "wrong"
CHANCE = 50.0

MODEL = "smollm2"
Record = dict[str, object]


@dataclass(frozen=True)
class Arm:
    """Accuracy in percent for each draw of examples, whose answers are right or wrong."""

    template: str
    shots: int
    answers: str
    accuracies: list[float]
    said_positive: list[float]  # how often, in percent


@dataclass(frozen=True)
class Measured:
    """All arms."""

    model: str
    n_sentences: int
    arms: list[Arm]

    def right(self, template: str, shots: int, answers: str = TRUE) -> Interval:
        """Return an arm's accuracy; chance is in the choice of sentences and in the draws."""
        [arm] = tools.where(self.arms, template=template, shots=shots, answers=answers)
        draws = Interval.of(arm.accuracies)
        share = Interval.share(draws.middle, self.n_sentences)
        low = math.hypot(draws.middle - draws.low, share.middle - share.low)
        high = math.hypot(draws.high - draws.middle, share.high - share.middle)
        return Interval(draws.middle, max(0.0, draws.middle - low), min(100.0, draws.middle + high))


def records(texts: Mapping[str, Sequence[str]]) -> list[Record]:
    """Return sentences, which are given by label, with their labels."""
    return [{"text": text, "label": label} for label, some in texts.items() for text in some]


def sentences_to_judge() -> list[Record]:
    """Return the sentences to judge, those written one by one and those composed."""
    composed = {
        label: [f"The {thing} {remark}" for thing in SENTENCES["things"] for remark in remarks]
        for label, remarks in SENTENCES["remarks"].items()
    }
    return records({label: own + composed[label] for label, own in SENTENCES["asked"].items()})


def drawn(shots: int, draw: int, answers: str) -> list[Record]:
    """Draw examples in random order, half of each label (an odd one by turns)."""
    chance, examples = random.Random(f"{shots}/{draw}"), list[Record]()
    for index, label in enumerate(LABELS):
        count = shots // 2 + (shots % 2 if (draw + index) % 2 else 0)
        examples += chance.sample(records({label: SENTENCES["examples"][label]}), count)
    chance.shuffle(examples)
    if answers == WRONG:
        return [{**record, "label": LABELS[record["label"] == LABELS[0]]} for record in examples]
    return examples


def ask(
    model: Chooser, few_shot: FewShot, asked: Sequence[Record], examples: Sequence[Record]
) -> tuple[float, float]:
    """Return how often the model is right, and how often it says "positive", in percent."""
    prompts = [few_shot.prompt(record, examples) for record in asked]
    options = [few_shot.continuations(record, "A sentence") for record in asked]
    chosen = [choice.index for choice in model.choose(prompts, options, "none")]
    right = [few_shot.right(record, "A sentence") for record in asked]
    hits = [guess == answer for guess, answer in zip(chosen, right, strict=True)]
    return 100 * fmean(hits), 100 * fmean(guess == 1 for guess in chosen)


def plan(full: bool) -> list[tuple[str, int, str]]:
    """Return template, number of examples and kind of answers of each arm."""
    counts = (0, 1, 2, 4, 8, 16) if full else (0, 2, 4, 8)
    return [
        *((MAIN, shots, TRUE) for shots in counts),
        *((OTHER, shots, TRUE) for shots in (counts if full else (0, 4, 8))),
        *((MAIN, shots, WRONG) for shots in counts if shots >= 4),
    ]


def measured_with(model: Chooser, name: str, settings: Settings) -> Measured:
    """Measure all arms with a model."""
    asked, arms = sentences_to_judge(), []
    for template, shots, answers in plan(settings.full):
        settings.tell(f"{template}, {shots} examples with {answers} answers")
        draws = settings.seeds(4, 8) if shots else settings.seeds(1, 1)
        results = [
            ask(model, TEMPLATES[template], asked, drawn(shots, draw, answers)) for draw in draws
        ]
        accuracies, said_positive = map(list, zip(*results, strict=True))
        arms.append(Arm(template, shots, answers, accuracies, said_positive))
    return Measured(name, len(asked), arms)


def measure(settings: Settings) -> Measured:
    """Ask the pulled model."""
    return measured_with(qkv.load(MODEL, dtype="fp32"), MODEL, settings)


def tables(m: Measured) -> list[Table]:
    """Accuracy by arm, with the extremes over the draws."""

    def extremes(arm: Arm) -> str:
        return f"{min(arm.accuracies):.0f}–{max(arm.accuracies):.0f}" if arm.shots else "–"

    columns = {
        "template": "{0.template}",
        "examples": "{0.shots}",
        "their answers": lambda arm: arm.answers if arm.shots else "–",
        "right": lambda arm: tools.plus_minus(arm.accuracies),
        "from–to": extremes,
        "says “positive”": lambda arm: f"{fmean(arm.said_positive):.0f}",
    }
    return [say.table("right", columns, m.arms, m=m)]


def draw(m: Measured) -> Figure:
    """Accuracy against examples: a mark a draw, a line for the mean."""
    figure, axes = new_figure(7.2, 4.0)
    every = product(TEMPLATES, (TRUE, WRONG))
    kinds = [kind for kind in every if kind in {(arm.template, arm.answers) for arm in m.arms}]
    for index, (template, answers) in enumerate(kinds):
        arms = tools.where(m.arms, template=template, answers=answers)
        for arm in arms:
            x, style = [arm.shots] * len(arm.accuracies), {"color": COLOURS[index], "alpha": 0.35}
            axes.plot(x, arm.accuracies, MARKERS[index], **style)
        means = [fmean(arm.accuracies) for arm in arms]
        label = f"“{template}”, {answers} answers"
        axes.plot([arm.shots for arm in arms], means, label=label, **look(index))
    axes.axhline(CHANCE, color=COLOURS[7], linestyle=":", label="chance")
    axes.set_xticks(sorted({arm.shots for arm in m.arms}))
    axes.set(xlabel="solved examples in the prompt (0: zero-shot)", ylabel="right answers (%)")
    axes.set_ylim(0, 103)
    axes.set_title(f"{m.model}: few examples, no training; pale marks are single draws of examples")
    axes.legend(loc="lower left")
    return figure


def judge(m: Measured) -> Verdict:
    """Does it work without examples, do they help however many, and do their answers matter?"""
    few, *_, most = sorted({x.shots for x in m.arms if x.template == MAIN and x.shots})
    wrong = [arm.shots for arm in tools.where(m.arms, template=MAIN, answers=WRONG)]
    spread = max(max(arm.accuracies) - min(arm.accuracies) for arm in m.arms)

    def more(shots: int, than: int, template: str = MAIN) -> Comparison:
        names = f"{shots} examples", f"{than} examples"
        return compare(m.right(template, shots), ">", m.right(template, than), names)

    return say.verdict(
        {"most": most, "least": few},
        zero=[compare(m.right(name, 0), ">", CHANCE, (name, "chance")) for name in TEMPLATES],
        few=more(few, 0),
        more=more(most, few),
        worded=more(4, 0, OTHER),
        imitates=[
            compare(m.right(MAIN, shots, WRONG), "<", m.right(MAIN, shots), f"{shots} wrong")
            for shots in wrong
        ],
        order=compare(spread, "<", 10, form=".0f"),
    )


LAB = say.make_lab(measure, tables, draw, judge, needs=MODEL)
