"""Question answering: questions on texts in, an encoder that finds the answers in them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from qkv.data import Framed, Sequences
from qkv.data.overlaps import answer_place
from qkv.data.splits import Splits, draw_examples, read_splits
from qkv.data.squad import Question, read_squad
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.evaluation.answers import answer_scores
from qkv.model import Encoder
from qkv.run.understand import Labelling
from qkv.tasks.answer import Answerer, Answers, Context, Part
from qkv.text import Tokenizer
from qkv.training import Objective, entropy, spans
from qkv.training.loop import Scores

Label = tuple[int, int]  # the answer's first and last token in a window
NOTHING: Label = (0, 0)  # BOS: the window does not hold an answer whole


class Answering(Labelling[Question, Answerer]):
    """The job of `task = "answer"`."""

    def read(self) -> Splits[Question]:
        """Questions with their answers; no text is both trained on and validated with."""
        data, seed = self.plan.recipe.data, self.plan.recipe.train.seed
        splits = read_splits(data, seed, read_squad, lambda one: one.context)
        train = draw_examples(splits.train, data.n_examples, seed, lambda _: None)
        return Splits(train, splits.valid, splits.test)

    def texts(self) -> Iterable[str]:
        """All texts that are trained on, each once, and the questions."""
        yield from dict.fromkeys(one.context for one in self.splits.train)
        yield from (one.question for one in self.splits.train)

    def head(self) -> dict[str, Any]:
        """Two logits a token: an answer starts here, an answer ends here."""
        return {"head": "token", "n_labels": 2}

    def build(self, model: Encoder, tokenizer: Tokenizer) -> Answerer:
        """The object of the task around a model."""
        unanswerable = not all(map(has_answer, self.splits.train))
        settings = dataclasses.asdict(self.plan.recipe.answer)
        return Answerer(model, tokenizer, Answers(**settings, unanswerable=unanswerable))

    def lay_out(self, examples: Sequence[Question]) -> Sequences:
        """Windows over each question's text, and where the answer starts and ends in each."""
        known = self.verb.spell(one.context for one in examples)
        contexts = [known[one.context] for one in examples]
        parts = self.verb.frame([one.question for one in examples], contexts)
        framed: list[Framed] = []
        labels: list[Label] = []
        dropped = 0
        for owner, group in groupby(parts, key=lambda part: part.owner):
            of_question = list(group)
            wanted = window_labels(examples[owner], contexts[owner], of_question)
            if wanted is None:
                dropped += 1
                continue
            chosen = learnt_from(wanted)
            framed += [of_question[index].framed for index in chosen]
            labels += [wanted[index] for index in chosen]
        self._say_dropped(dropped, len(examples))
        return Sequences.of(framed, np.array(labels, np.int64))

    def _say_dropped(self, dropped: int, total: int) -> None:
        what = "whose answer no window of the text holds whole"
        if dropped == total:
            raise UserError(
                f"data: there are {total} questions {what}; raise model.max_length or "
                f"answer.overlap."
            )
        if dropped:
            self.plan.say(f"left out {dropped:,} of {total:,} questions {what}")

    def objective_of(self, train: Sequences) -> Objective:
        """Two softmaxes over the tokens of a window."""
        return spans(self.plan.recipe.train.consistency)

    def baseline(self, train: Sequences) -> float:
        """The loss of one who knows how often a window has no answer, and else picks any token."""
        without = int((train.labels == 0).all(axis=1).sum())
        there = np.array([without, len(train) - without])
        uniform = float(np.log(train.target_sizes - 1).mean())
        return entropy(there) + uniform * float(there[1] / len(train))

    def measure(self, verb: Answerer, examples: Sequence[Question]) -> list[Score]:
        """Exact match and F1."""
        return answerer_scores(verb, examples)

    def figures(self, scores: Sequence[Score]) -> Scores:
        """Both, over all questions."""
        names = {"exact match": "exact_match", "F1": "f1"}
        return {names[score.name]: score.value for score in scores if score.name in names}

    def keep(self) -> None:
        """Make the run's folder a model folder of the weights as they are now."""
        self.verb.save(self.plan.folder)

    def load(self) -> Answerer:
        """Read the run's folder back."""
        return Answerer.load(self.plan.folder, self.plan.device)


def has_answer(question: Question) -> bool:
    """Whether the text answers a question; some files write an empty answer where it does not."""
    return any(answer.text.strip() for answer in question.answers)


def window_labels(
    question: Question, context: Context, parts: Sequence[Part]
) -> list[Label] | None:
    """Where in each window the answer lies: the first one that some window holds whole.

    None where there are answers, but no such one: nothing true can be learnt from the windows.
    """
    for answer in question.answers:
        if answer.start < 0:
            continue  # it does not stand in the text as it is written here
        tokens = context.tokens(answer.start, answer.start + len(answer.text))
        places = [tokens and answer_place(part.window, *tokens) for part in parts]
        if any(place is not None for place in places):
            return [
                (part.begin + place[0], part.begin + place[1]) if place is not None else NOTHING
                for part, place in zip(parts, places, strict=True)
            ]
    return None if has_answer(question) else [NOTHING] * len(parts)


def learnt_from(labels: Sequence[Label]) -> list[int]:
    """Which of a question's windows are trained on, so that a long text does not teach silence.

    All that hold the answer, and at most one more of the others, taken evenly from the text.
    """
    holding = [index for index, label in enumerate(labels) if label != NOTHING]
    others = [index for index, label in enumerate(labels) if label == NOTHING]
    count = min(len(others), len(holding) + 1)
    evenly = [others[turn * len(others) // count] for turn in range(count)]
    return sorted(holding + evenly)


def answerer_scores(verb: Answerer, questions: Sequence[Question]) -> list[Score]:
    """How well questions are answered, as SQuAD's or CMRC's own scripts count."""
    found = verb.answers([(one.question, one.context) for one in questions])
    # Numbers, for ids need not differ between files.
    given = {str(number): best[0].text for number, best in enumerate(found)}
    gold = {str(n): [answer.text for answer in one.answers] for n, one in enumerate(questions)}
    return answer_scores(given, gold)
