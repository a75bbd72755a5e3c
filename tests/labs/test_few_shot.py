"""Lab 21 with models whose behaviour is known: who reads, who copies, who guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from qkv.tasks.few_shot import Choice, Normalize
from qkv_labs import few_shot as lab
from qkv_labs.lab import Settings

ASKED = lab.records(lab.SENTENCES["asked"])
RIGHTLY_POSITIVE = [
    str(record["text"]) for record in lab.sentences_to_judge() if record["label"] == "positive"
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
        return [Choice(lab.LABELS.index(self.says(one)), [0.0, 0.0]) for one in prompts]


def knows(prompt: str) -> str:
    return lab.LABELS[any(text in prompt for text in RIGHTLY_POSITIVE)]


def copies(prompt: str) -> str:
    """Answers rightly after examples with right answers, wrongly after wrong ones."""
    solved = [text for text in lab.SENTENCES["examples"]["positive"] if text in prompt]
    if not solved:
        return lab.LABELS[0]
    answer = prompt.split(solved[0])[1].split("\n\n")[0].split()[-1]
    return knows(prompt) if answer == "positive" else lab.LABELS[knows(prompt) == lab.LABELS[0]]


def test_sentences_are_balanced_and_apart() -> None:
    every = []
    for texts in (lab.SENTENCES[kind] for kind in ("asked", "remarks", "examples")):
        assert len(texts["positive"]) == len(texts["negative"])
        every += [*texts["positive"], *texts["negative"]]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("draw", range(4))
@pytest.mark.parametrize("shots", [0, 1, 2, 4, 8, 16])
def test_examples_are_half_of_each_label(shots: int, draw: int) -> None:
    right, wrong = lab.drawn(shots, draw, lab.TRUE), lab.drawn(shots, draw, lab.WRONG)
    counts = [[one["label"] for one in right].count(label) for label in lab.LABELS]
    assert sum(counts) == shots
    assert abs(counts[0] - counts[1]) == shots % 2
    known = lab.records(lab.SENTENCES["examples"])
    assert all(one in known for one in right)
    assert [one["text"] for one in wrong] == [one["text"] for one in right]
    assert all(a["label"] != b["label"] for a, b in zip(right, wrong, strict=True))


def test_draws_differ_in_examples_or_order() -> None:
    assert len({str(lab.drawn(8, draw, lab.TRUE)) for draw in range(4)}) == 4
    orders = {tuple(one["label"] for one in lab.drawn(8, draw, lab.TRUE)) for draw in range(4)}
    assert len(orders) > 1  # the labels are mixed too


def test_who_knows_is_always_right_and_who_guesses_half_the_time() -> None:
    assert lab.ask(Stub(knows), lab.TEMPLATES[lab.MAIN], ASKED, []) == (100, 50)
    optimist = Stub(lambda prompt: "positive")
    assert lab.ask(optimist, lab.TEMPLATES[lab.MAIN], ASKED, []) == (lab.CHANCE, 100)


def test_prompts_hold_the_examples_and_then_the_question() -> None:
    model, examples = Stub(knows), lab.drawn(2, 0, lab.TRUE)
    lab.ask(model, lab.TEMPLATES[lab.MAIN], ASKED[:1], examples)
    first, second = (f"Review: {one['text']}\nSentiment: {one['label']}" for one in examples)
    start = "Say whether each review is positive or negative."
    question = f"Review: {ASKED[0]['text']}\nSentiment:"
    assert model.prompts == ["\n\n".join([start, first, second, question])]


def test_a_model_that_copies_is_found_out() -> None:
    steps: list[str] = []
    m = lab.measured_with(Stub(copies), "stub", Settings(tell=steps.append))
    assert len(steps) == len(lab.plan(False)) == len(m.arms)
    assert m.n_sentences == len({record["text"] for record in lab.sentences_to_judge()}) == 120
    assert m.right(lab.MAIN, 0).middle == lab.CHANCE
    assert (m.right(lab.MAIN, 8).middle, m.right(lab.MAIN, 8).high) == (100, 100)
    assert m.right(lab.MAIN, 8, lab.WRONG).middle == 0
    assert m.right(lab.MAIN, 8, lab.WRONG).high < 5
    draws = {arm.shots: len(arm.accuracies) for arm in m.arms}
    assert draws == {0: 1, 2: 4, 4: 4, 8: 4}  # without examples there is nothing to draw
