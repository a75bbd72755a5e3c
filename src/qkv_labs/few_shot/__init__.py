"""Lab 21: a language model is asked as it stands, and after a few solved examples.

No weight is changed: the examples stand in the prompt. A control has the same examples with wrong
answers, which a model that goes by their form alone would not mind.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from qkv.tasks.few_shot import Chooser, FewShot
from qkv_labs.lab import Lab, Outcome, Settings, Table, Verdict, Words
from qkv_labs.tools import plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = ("negative", "positive")
# To be asked about: nobody else has these sentences, for they were written for this lab.
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
# To be drawn as examples
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
        "{text}\nIs this review positive or negative? It is",
        " {label}",
        options=LABELS,
    ),
}
MAIN, OTHER = TEMPLATES
TRUE, WRONG = "right", "wrong"
CHANCE = 50.0
CLEAR = 5.0  # percentage points that count as a difference: two of 40 sentences, asked alike
WORKS = 60.0  # right zero-shot; four sentences above chance, or it cannot be said to do the task

Record = dict[str, object]


@dataclass(frozen=True)
class Arm:
    """Accuracy in percent for each draw of so many examples, whose answers are right or wrong."""

    template: str
    shots: int
    answers: str
    accuracies: list[float]
    said_positive: list[float]  # how often, in percent, whatever is right


@dataclass(frozen=True)
class Measured:
    """All arms."""

    model: str
    n_sentences: int
    arms: list[Arm]

    def mean(self, template: str, shots: int, answers: str = TRUE) -> float:
        """The mean accuracy of an arm."""
        return fmean(self.of(template, shots, answers).accuracies)

    def of(self, template: str, shots: int, answers: str = TRUE) -> Arm:
        """One arm."""
        return next(
            arm
            for arm in self.arms
            if (arm.template, arm.shots, arm.answers) == (template, shots, answers)
        )


def records(good: Sequence[str], bad: Sequence[str]) -> list[Record]:
    """Sentences with their labels."""
    return [
        {"text": text, "label": label}
        for label, texts in zip(reversed(LABELS), (good, bad), strict=True)
        for text in texts
    ]


def drawn(shots: int, draw: int, answers: str) -> list[Record]:
    """Examples, half of each label (an odd one by turns), in an order that the draw decides."""
    chance, pool = random.Random(f"{shots}/{draw}"), records(GOOD_EXAMPLES, BAD_EXAMPLES)
    found: list[Record] = []
    for place, label in enumerate(LABELS):
        count = shots // 2 + (shots % 2 if (draw + place) % 2 else 0)
        found += chance.sample([one for one in pool if one["label"] == label], count)
    chance.shuffle(found)
    if answers == WRONG:
        found = [{**one, "label": LABELS[one["label"] == LABELS[0]]} for one in found]
    return found


def ask(
    model: Chooser, few_shot: FewShot, asked: Sequence[Record], examples: Sequence[Record]
) -> tuple[float, float]:
    """How often the model is right, and how often it says "positive", in percent."""
    prompts = [few_shot.prompt(one, examples) for one in asked]
    options = [few_shot.continuations(one, "A sentence") for one in asked]
    chosen = [one.index for one in model.choose(prompts, options, "none")]
    right = [few_shot.right(one, "A sentence") for one in asked]
    hits = [one == other for one, other in zip(chosen, right, strict=True)]
    return 100 * fmean(hits), 100 * fmean(one == 1 for one in chosen)


def plan(full: bool) -> list[tuple[str, int, str]]:
    """Template, number of examples and kind of answers of each arm."""
    shots = (0, 1, 2, 4, 8, 16) if full else (0, 2, 4, 8)
    return [
        *((MAIN, one, TRUE) for one in shots),
        *((OTHER, one, TRUE) for one in (shots if full else (0, 4, 8))),
        *((MAIN, one, WRONG) for one in shots if one >= 4),
    ]


def measured_with(model: Chooser, name: str, settings: Settings) -> Measured:
    """All arms with any model that can choose."""
    asked = records(POSITIVE, NEGATIVE)
    arms = []
    for template, shots, answers in plan(settings.full):
        settings.tell(f"{template}, {shots} examples with {answers} answers")
        draws = range(
            settings.seed, settings.seed + (1 if not shots else 8 if settings.full else 4)
        )
        found = [
            ask(model, TEMPLATES[template], asked, drawn(shots, draw, answers)) for draw in draws
        ]
        accuracies, said = ([one[place] for one in found] for place in (0, 1))
        arms.append(Arm(template, shots, answers, accuracies, said))
    return Measured(name, len(asked), arms)


def measure(settings: Settings) -> Measured:
    """Ask the pulled model."""
    import qkv

    assert LAB.needs is not None
    return measured_with(qkv.load(LAB.needs), LAB.needs, settings)


def tables(m: Measured) -> tuple[Table, ...]:
    """Accuracy by arm, with the extremes over the draws."""
    rows = [
        (
            arm.template,
            str(arm.shots),
            arm.answers if arm.shots else "–",
            plus_minus(arm.accuracies),
            f"{min(arm.accuracies):.0f}–{max(arm.accuracies):.0f}" if arm.shots else "–",
            f"{fmean(arm.said_positive):.0f}",
        )
        for arm in m.arms
    ]
    return (
        Table(
            Words(
                f"{m.model}: right answers on {m.n_sentences} sentences, half of them positive, %",
                f"{m.model}：{m.n_sentences} 个句子（褒贬各半）的正确率，%",
            ),
            ("template", "examples", "their answers", "right", "from–to", "says “positive”"),
            tuple(rows),
        ),
    )


def draw(m: Measured) -> Figure:
    """Accuracy against examples: a mark a draw, a line for the mean."""
    from qkv.inspect.style import COLOURS, MARKERS, new_figure

    figure, axes = new_figure(7.2, 4.0)
    kinds = [
        (template, answers)
        for template in TEMPLATES
        for answers in (TRUE, WRONG)
        if any((arm.template, arm.answers) == (template, answers) for arm in m.arms)
    ]
    for (template, answers), colour, marker in zip(kinds, COLOURS, MARKERS, strict=False):
        arms = [arm for arm in m.arms if (arm.template, arm.answers) == (template, answers)]
        for arm in arms:
            axes.plot(
                [arm.shots] * len(arm.accuracies), arm.accuracies, marker, color=colour, alpha=0.35
            )
        axes.plot(
            [arm.shots for arm in arms],
            [fmean(arm.accuracies) for arm in arms],
            marker=marker,
            color=colour,
            label=f"“{template}”, {answers} answers",
        )
    axes.axhline(CHANCE, color=COLOURS[7], linestyle=":", label="chance")
    axes.set_xticks(sorted({arm.shots for arm in m.arms}))
    axes.set(
        xlabel="solved examples in the prompt (0: zero-shot)",
        ylabel="right answers (%)",
        ylim=(0, 103),
        title=f"{m.model}: few examples, no training; pale marks are single draws of examples",
    )
    axes.legend(loc="lower left")
    return figure


def changes(m: Measured, template: str) -> dict[int, float]:
    """By the number of examples, percentage points that they add to zero-shot."""
    zero = m.mean(template, 0)
    return {
        arm.shots: fmean(arm.accuracies) - zero
        for arm in m.arms
        if arm.shots and (arm.template, arm.answers) == (template, TRUE)
    }


def imitation(m: Measured) -> float:
    """Percentage points between right and wrong answers in the examples, at the same numbers."""
    wrong = [arm for arm in m.arms if arm.answers == WRONG]
    return fmean(m.mean(arm.template, arm.shots) - fmean(arm.accuracies) for arm in wrong)


def _condition(m: Measured, works: bool, change: dict[str, dict[int, float]]) -> Words:
    """Which parts of the claim the figures do not support everywhere."""
    en, zh = "", ""
    if not works:
        en += (
            "Not without examples, where at least one way of asking is little better than chance. "
        )
        zh += "没有示例时不成立，至少有一种问法与瞎猜相差不多。"
    helped = {
        name: ", ".join(str(shots) for shots, by in found.items() if by >= CLEAR)
        for name, found in change.items()
    }
    if any(by < CLEAR for found in change.values() for by in found.values()):
        where = "; ".join(f"“{name}” × {shots}" for name, shots in helped.items() if shots)
        en += f"Examples help in some prompts only (template × number: {where}). "
        zh += f"示例只在部分提示里有帮助（问法 × 示例数：{where}）。"
    if imitation(m) < CLEAR:
        en += "Whether the examples' answers are right hardly matters. "
        zh += "示例的答案对不对，影响不大。"
    return Words(en, zh)


def judge(m: Measured) -> Verdict:
    """Does it work without examples, do they help however many, and do their answers matter?"""
    zero = {name: m.mean(name, 0) for name in TEMPLATES}
    change = {name: changes(m, name) for name in TEMPLATES}
    helped = [by >= CLEAR for found in change.values() for by in found.values()]
    works = min(zero.values()) >= WORKS
    outcome: Outcome = "holds when"
    if works and all(helped) and imitation(m) >= CLEAR:
        outcome = "holds"
    elif not any(helped):
        outcome = "does not hold"
    when = _condition(m, works, change) if outcome == "holds when" else Words("", "")
    spread = max(max(arm.accuracies) - min(arm.accuracies) for arm in m.arms)
    en, zh = (
        [
            join.join(form.format(by=by, shots=shots) for shots, by in found.items())
            for found in change.values()
        ]
        for join, form in ((", ", "{by:+.0f} with {shots}"), ("、", "{shots} 个 {by:+.0f}"))
    )
    return Verdict(
        outcome,
        Words(
            f"{when.en}Zero-shot, {zero[MAIN]:.0f} and {zero[OTHER]:.0f} % are right in the two "
            f"ways of asking (chance {CHANCE:.0f}). Examples change the first by so many points: "
            f"{en[0]}; and the second: {en[1]}. Wrong answers in the examples (4 or more, "
            f"first way) change it by {-imitation(m):+.0f} points, and their draw and order alone "
            f"make up to {spread:.0f}.",
            f"{when.zh}零样本时，两种问法的正确率为 {zero[MAIN]:.0f}% 和 {zero[OTHER]:.0f}%"
            f"（瞎猜 {CHANCE:.0f}%）。加示例后，第一种问法变化的百分点：{zh[0]}；第二种：{zh[1]}。"
            f"把示例的答案都改错（第一种问法，4 个以上），变化 {-imitation(m):+.0f} 个百分点；"
            f"仅仅换一批示例或换个顺序，最多就能相差 {spread:.0f} 个百分点。",
        ),
    )


LAB = Lab(
    number=21,
    name="few_shot",
    title=Words("Zero-shot and few-shot prompting", "零样本与少样本提示"),
    claim=Words(
        "A model that predicts the next word can be given a task in its prompt: it does it from a "
        "description alone, and better after a few solved examples, which it imitates; no weight "
        "is changed.",
        "任务可以直接写进提示，交给预测下一个词的模型去做：只看说明就能做（零样本），"
        "再给几个做好的例子，它会照着做，而且做得更好（少样本）；权重始终不变。",
    ),
    experiment=Words(
        "SmolLM2 (135 million weights) chooses the likelier of “positive” and “negative” after 40 "
        "sentences written for this lab, half of each, in two ways of asking, after 0 to 8 "
        "examples (0 to 16 with --full), each time with four draws and orders (eight with --full). "
        "As a control the examples' answers are all made wrong. One model and few sentences: one "
        "answer is 2.5 points.",
        "让 SmolLM2（1.35 亿参数）读 40 个专为本实验写的句子（褒贬各半），在 positive 与 negative "
        "中选出更可能的一个。用两种问法，给 0 到 8 个示例（加 --full 时到 16 个），"
        "每种情形换四批示例和顺序（加 --full 为八批）。对照组把示例的答案全部改错。"
        "只有一个模型、句子也不多：一个回答就占 2.5 个百分点。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
    needs="smollm2",
)
