"""Lab 21: a language model is asked without examples, and after a few solved ones.

No weight is changed: the examples are in the prompt. A control gives the examples wrong answers,
which would not matter to a model that goes by their form alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import qkv
from qkv.tasks import Chooser, FewShot
from qkv_labs import tools
from qkv_labs.figures import COLOURS, MARKERS, Figure, look, new_figure
from qkv_labs.lab import Interval, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("few_shot")

LABELS = ("negative", "positive")
# Test sentences, written for this lab
POSITIVE = (
    "I laughed from the first scene to the last.",
    "The soup was the best I have had in years.",
    "Our room had a lovely view of the sea.",
    "This little lamp brightens up my whole desk.",
    "The actors play as if they had known each other forever.",
    "She explained everything patiently and with a smile.",
    "I finished the book in one night and wanted more.",
    "The battery still runs after three days.",
    "We will certainly come back next summer.",
    "A warm and clever film for the whole family.",
    "The bread is fresh and the coffee is excellent.",
    "Setting it up took two minutes and it simply works.",
    "The music gave me goose bumps.",
    "Finally a bicycle that is light and strong.",
    "The guide knew wonderful stories about every house.",
    "My children ask for this game every evening.",
    "The shoes fit perfectly and look elegant.",
    "What a delightful evening at the theatre.",
    "The garden is quiet, green and beautifully kept.",
    "He answered my question within an hour, very helpful.",
)
NEGATIVE = (
    "I looked at my watch every five minutes.",
    "The fish was cold and tasted of nothing.",
    "Our room smelled of smoke and the shower leaked.",
    "The lamp broke on the second day.",
    "The actors seem to read their lines off a wall.",
    "She was rude and did not listen to us.",
    "I gave up on the book after forty pages.",
    "The battery is empty before noon.",
    "We will never set foot in there again.",
    "A dull film that insults its audience.",
    "The bread was stale and the coffee was weak.",
    "I spent two days on it and it still does not work.",
    "The music was so loud that I got a headache.",
    "The bicycle is heavy and its brakes squeak.",
    "The guide was late and bored us to tears.",
    "My children threw this game away after one try.",
    "The shoes hurt and came apart within a week.",
    "What a waste of an evening.",
    "The garden is full of rubbish and weeds.",
    "Nobody ever answered my question, a terrible service.",
)
# Eight things, and five remarks of each kind that fit them all: 80 more test sentences
THINGS = ("hotel", "novel", "restaurant", "camera", "museum", "course", "show", "trip")
PRAISE = (
    "was worth every penny.",
    "surpassed all my hopes.",
    "left me smiling for days.",
    "is one that I recommend to all my friends.",
    "was a pleasant surprise from beginning to end.",
)
BLAME = (
    "was not worth the money.",
    "fell short of all my hopes.",
    "left me angry for days.",
    "is one that I warn all my friends against.",
    "was an unpleasant surprise from beginning to end.",
)
# Examples for the prompt
GOOD_EXAMPLES = (
    "I enjoyed every page of it.",
    "The staff were kind and quick.",
    "A funny and touching story.",
    "It works better than I had hoped.",
    "The cake was delicious.",
    "A great phone for little money.",
    "We had a wonderful time.",
    "The picture is sharp and bright.",
    "I would buy it again at once.",
    "The concert was a pure joy.",
)
BAD_EXAMPLES = (
    "I was bored after ten minutes.",
    "The staff ignored us all evening.",
    "A silly and confused story.",
    "It stopped working within a week.",
    "The cake was dry and far too sweet.",
    "A poor phone at a high price.",
    "We had a horrible time.",
    "The picture is dark and blurred.",
    "I want my money back.",
    "The concert was a disaster.",
)
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


def records(good: Sequence[str], bad: Sequence[str]) -> list[Record]:
    """Return sentences with their labels."""
    return [
        {"text": text, "label": label}
        for label, texts in zip(reversed(LABELS), (good, bad), strict=True)
        for text in texts
    ]


def sentences_to_judge() -> list[Record]:
    """Return the sentences to judge, those written one by one and those composed."""
    praise, blame = (
        [f"The {thing} {remark}" for thing in THINGS for remark in remarks]
        for remarks in (PRAISE, BLAME)
    )
    return records([*POSITIVE, *praise], [*NEGATIVE, *blame])


def drawn(shots: int, draw: int, answers: str) -> list[Record]:
    """Draw examples in random order, half of each label (an odd one by turns)."""
    chance, pool = random.Random(f"{shots}/{draw}"), records(GOOD_EXAMPLES, BAD_EXAMPLES)
    examples: list[Record] = []
    for index, label in enumerate(LABELS):
        count = shots // 2 + (shots % 2 if (draw + index) % 2 else 0)
        examples += chance.sample([record for record in pool if record["label"] == label], count)
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
    return [Table.of(say("right", m=m), m.arms, columns)]


def draw(m: Measured) -> Figure:
    """Accuracy against examples: a mark a draw, a line for the mean."""
    figure, axes = new_figure(7.2, 4.0)
    kinds = sorted({(arm.template, arm.answers) for arm in m.arms}, key=_kind)
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


def _kind(kind: tuple[str, str]) -> tuple[int, int]:
    template, answers = kind
    return list(TEMPLATES).index(template), (TRUE, WRONG).index(answers)


def judge(m: Measured) -> Verdict:
    """Does it work without examples, do they help however many, and do their answers matter?"""
    few = sorted({arm.shots for arm in tools.where(m.arms, template=MAIN, answers=TRUE)})[1:]
    wrong = [arm.shots for arm in tools.where(m.arms, template=MAIN, answers=WRONG)]
    spread = max(max(arm.accuracies) - min(arm.accuracies) for arm in m.arms)
    return say.verdict(
        {
            "zero": [
                compare(m.right(name, 0), ">", CHANCE, (name, "chance")) for name in TEMPLATES
            ],
            "few": compare(
                m.right(MAIN, few[0]), ">", m.right(MAIN, 0), (f"{few[0]} examples", "0 examples")
            ),
            "more": compare(
                m.right(MAIN, few[-1]),
                ">",
                m.right(MAIN, few[0]),
                (f"{few[-1]} examples", f"{few[0]} examples"),
            ),
            "worded": compare(
                m.right(OTHER, 4), ">", m.right(OTHER, 0), ("4 examples", "0 examples")
            ),
            "imitates": [
                compare(
                    m.right(MAIN, shots, WRONG), "<", m.right(MAIN, shots), (f"{shots} wrong", "")
                )
                for shots in wrong
            ],
            "order": compare(spread, "<", 10, form=".0f"),
        },
        most=few[-1],
        least=few[0],
    )


LAB = say.make_lab(measure, tables, draw, judge, needs=MODEL)
