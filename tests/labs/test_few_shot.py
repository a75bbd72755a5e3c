"""Lab 21 with models whose behaviour is known: who reads, who copies, who guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from qkv.tasks.few_shot import Choice, Normalize
from qkv_labs.few_shot import (
    BAD_EXAMPLES,
    CHANCE,
    GOOD_EXAMPLES,
    LABELS,
    MAIN,
    NEGATIVE,
    POSITIVE,
    TEMPLATES,
    TRUE,
    WRONG,
    ask,
    drawn,
    measured_with,
    plan,
    records,
    sentences_to_judge,
)
from qkv_labs.lab import Settings

ASKED = records(POSITIVE, NEGATIVE)
RIGHTLY_POSITIVE = [
    str(record["text"]) for record in sentences_to_judge() if record["label"] == "positive"
]


class Stub:
    """Chooses by what a function says of the prompt."""

    def __init__(self, says: Callable[[str], str]) -> None:
        self.says = says
        self.prompts: list[str] = []

    def choose(
        self, prompts: Sequence[str], options: Sequence[Sequence[str]], normalize: Normalize
    ) -> list[Choice]:
        assert all(list(one) == [" negative", " positive"] for one in options)
        self.prompts += prompts
        return [Choice(LABELS.index(self.says(one)), [0.0, 0.0]) for one in prompts]


def knows(prompt: str) -> str:
    return LABELS[any(text in prompt for text in RIGHTLY_POSITIVE)]


def copies(prompt: str) -> str:
    """Answers rightly after examples with right answers, wrongly after wrong ones."""
    solved = [text for text in GOOD_EXAMPLES if text in prompt]
    if not solved:
        return LABELS[0]
    answer = prompt.split(solved[0])[1].split("\n\n")[0].split()[-1]
    return knows(prompt) if answer == "positive" else LABELS[knows(prompt) == LABELS[0]]


def test_sentences_are_balanced_and_apart() -> None:
    assert len(POSITIVE) == len(NEGATIVE)
    assert len(GOOD_EXAMPLES) == len(BAD_EXAMPLES)
    every = [*POSITIVE, *NEGATIVE, *GOOD_EXAMPLES, *BAD_EXAMPLES]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("draw", range(4))
@pytest.mark.parametrize("shots", [0, 1, 2, 4, 8, 16])
def test_examples_are_half_of_each_label(shots: int, draw: int) -> None:
    right, wrong = drawn(shots, draw, TRUE), drawn(shots, draw, WRONG)
    counts = [[one["label"] for one in right].count(label) for label in LABELS]
    assert sum(counts) == shots
    assert abs(counts[0] - counts[1]) == shots % 2
    known = records(GOOD_EXAMPLES, BAD_EXAMPLES)
    assert all(one in known for one in right)
    assert [one["text"] for one in wrong] == [one["text"] for one in right]
    assert all(a["label"] != b["label"] for a, b in zip(right, wrong, strict=True))


def test_draws_differ_in_examples_or_order() -> None:
    assert len({str(drawn(8, draw, TRUE)) for draw in range(4)}) == 4
    orders = {tuple(one["label"] for one in drawn(8, draw, TRUE)) for draw in range(4)}
    assert len(orders) > 1  # the labels are mixed too


def test_who_knows_is_always_right_and_who_guesses_half_the_time() -> None:
    assert ask(Stub(knows), TEMPLATES[MAIN], ASKED, []) == (100, 50)
    assert ask(Stub(lambda prompt: "positive"), TEMPLATES[MAIN], ASKED, []) == (CHANCE, 100)


def test_prompts_hold_the_examples_and_then_the_question() -> None:
    model, examples = Stub(knows), drawn(2, 0, TRUE)
    ask(model, TEMPLATES[MAIN], ASKED[:1], examples)
    first, second = (f"Review: {one['text']}\nSentiment: {one['label']}" for one in examples)
    start = "Say whether each review is positive or negative."
    question = f"Review: {POSITIVE[0]}\nSentiment:"
    assert model.prompts == ["\n\n".join([start, first, second, question])]


def test_a_model_that_copies_is_found_out() -> None:
    steps: list[str] = []
    m = measured_with(Stub(copies), "stub", Settings(tell=steps.append))
    assert len(steps) == len(plan(False)) == len(m.arms)
    assert m.n_sentences == len({record["text"] for record in sentences_to_judge()}) == 120
    assert m.right(MAIN, 0).middle == CHANCE
    assert (m.right(MAIN, 8).middle, m.right(MAIN, 8).high) == (100, 100)
    assert m.right(MAIN, 8, WRONG).middle == 0
    assert m.right(MAIN, 8, WRONG).high < 5
    draws = {arm.shots: len(arm.accuracies) for arm in m.arms}
    assert draws == {0: 1, 2: 4, 4: 4, 8: 4}  # without examples there is nothing to draw
