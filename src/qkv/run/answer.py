"""Question answering: questions about texts in, an encoder that finds the answers in them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.data import (
    Framed,
    Question,
    SequenceItems,
    Splits,
    answer_place,
    framed_arrays,
    read_squad,
)
from qkv.errors import UserError
from qkv.run.labels import LabelJob
from qkv.tasks import Answerer
from qkv.tasks.answer import Answers, Context, Part
from qkv.training import entropy

Label = tuple[int, int]  # the answer's first and last token in a window
WHY = "whose answer is not in the text, or in no window whole"
NOTHING: Label = (0, 0)  # BOS: the window does not hold a whole answer


class AnswerJob(LabelJob[Question]):
    """The job of `task = "answer"`."""

    result: Answerer

    def read_splits(self) -> Splits[Question]:
        """Read questions with their answers; all about one text are in the same split."""
        return self.split(read_squad, key=lambda question: question.context)

    def texts(self) -> Iterable[str]:
        """Yield all training texts, each once, and the questions."""
        yield from dict.fromkeys(question.context for question in self.splits.train)
        yield from (question.question for question in self.splits.train)

    def build_result(self, model: Any) -> Answerer:
        """Build an answerer, which may give no answer if training has such questions."""
        unanswerable = not all(map(has_answer, self.splits.train))
        settings = Answers(**asdict(self.recipe.answer), unanswerable=unanswerable)
        return Answerer(model, self.tokenizer, settings)

    def encode(self, split: str) -> SequenceItems:
        """Cut each text into windows, and label where the answer starts and ends in each."""
        settings = self.recipe.answer
        key = [settings.overlap, settings.max_question]
        items = self.sequences(split, self._windows, key, why=WHY)
        if not len(items):
            raise UserError(
                f"data: no window holds a whole answer to any of the {len(self.examples(split)):,} "
                f"questions; an answer must be in its text letter by letter: correct the file, or "
                f"raise model.max_length or answer.overlap."
            )
        return items

    def _windows(self, examples: Sequence[Question]) -> dict[str, npt.NDArray[Any]]:
        known = self.result.spell(question.context for question in examples)
        contexts = [known[question.context] for question in examples]
        parts = self.result.frame([question.question for question in examples], contexts)
        framed: list[Framed] = []
        labels: list[Label] = []
        dropped = 0
        for owner, group in groupby(parts, key=lambda part: part.owner):
            of_question = list(group)
            wanted = window_labels(examples[owner], contexts[owner], of_question)
            if wanted is None:
                dropped += 1
                continue
            chosen = trained_windows(wanted)
            framed += [of_question[index].framed for index in chosen]
            labels += [wanted[index] for index in chosen]
        ends = np.array(labels, np.int64).reshape(-1, 2)
        return framed_arrays(framed) | {"labels": ends, "dropped": np.array([dropped])}

    def baseline(self) -> float:
        """Return the loss of knowing how often a window has no answer, and guessing else."""
        train: SequenceItems = self.train_items
        without = int((train.labels == 0).all(axis=1).sum())
        counts = np.array([without, len(train) - without])
        uniform = float(np.log(train.target_sizes - 1).mean())
        return entropy(counts) + uniform * float(counts[1] / len(train))


def has_answer(question: Question) -> bool:
    """Whether the text answers a question; some files write an empty answer where it does not."""
    return any(answer.text.strip() for answer in question.answers)


def window_labels(
    question: Question, context: Context, parts: Sequence[Part]
) -> list[Label] | None:
    """Return where in each window the answer is: the first one that some window holds whole.

    None where there are answers, but no window holds one: nothing true can be learned then.
    """
    for answer in question.answers:
        if answer.start < 0:
            continue  # the text does not contain it as it is written
        tokens = context.tokens(answer.start, answer.start + len(answer.text))
        spans = [tokens and answer_place(part.window, *tokens) for part in parts]
        if any(span is not None for span in spans):
            return [
                (part.begin + span[0], part.begin + span[1]) if span is not None else NOTHING
                for part, span in zip(parts, spans, strict=True)
            ]
    return None if has_answer(question) else [NOTHING] * len(parts)


def trained_windows(labels: Sequence[Label]) -> list[int]:
    """Choose the windows to train on, so that a long text does not teach silence.

    All that hold the answer, and at most one more of the others, taken evenly from the text.
    """
    holding = [index for index, label in enumerate(labels) if label != NOTHING]
    others = [index for index, label in enumerate(labels) if label == NOTHING]
    count = min(len(others), len(holding) + 1)
    return sorted(holding + [others[turn * len(others) // count] for turn in range(count)])
