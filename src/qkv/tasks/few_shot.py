"""Few-shot prompting: solved examples, an open question, and the answer that a model prefers.

As Brown et al. (2020, section 2.4) do it: the examples are drawn at random from a pool, anew for
each record, and an option's score is its log-probability after the prompt.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from qkv.errors import UserError
from qkv.text import fill, names

Record = Mapping[str, object]
Normalize = Literal["none", "tokens", "bytes"]
RECORDS_AT_A_TIME = 256  # between two words of progress


@dataclass(frozen=True)
class Choice:
    """The option that a model prefers, and the score of each."""

    index: int
    scores: list[float]


class Chooser(Protocol):
    """A model that can say which of some options is the likeliest to follow a prompt."""

    def choose(
        self, prompts: Sequence[str], options: Sequence[Sequence[str]], normalize: Normalize
    ) -> list[Choice]:
        """Choose one of its options for each prompt; scores may be taken a token or a byte."""


@dataclass(frozen=True)
class FewShot:
    """How a record is asked and answered, such as "Review: {text}\\nSentiment:" and " {label}".

    The possible answers are `options`, the same for all, or a list in each record's
    `options_field`. They are what stands in the one place of `answer`, without what is around it.
    """

    template: str
    answer: str
    separator: str = "\n\n"
    instruction: str = ""
    options: tuple[str, ...] = ()
    options_field: str = ""

    def __post_init__(self) -> None:
        if len(names(self.answer)) != 1:
            raise UserError(
                f"The answer {self.answer!r} of a few-shot prompt needs exactly one '{{field}}', "
                f"which the options fill; write it like ' {{label}}'."
            )
        if bool(self.options) == bool(self.options_field):
            raise UserError(
                "A few-shot prompt needs its possible answers as options, or the field that holds "
                "them as options_field; set one of the two."
            )

    def prompt(
        self,
        record: Record,
        examples: Sequence[Record] = (),
        where: str = "The record",
    ) -> str:
        """The instruction, the solved examples and the record's open question."""
        start = [self.instruction] if self.instruction else []
        solved = [
            self.question(example, "An example") + self.solution(example, "An example")
            for example in examples
        ]
        return self.separator.join([*start, *solved, self.question(record, where)])

    def question(self, record: Record, where: str) -> str:
        """What is asked of a record."""
        return fill(self.template, record, where)

    def solution(self, record: Record, where: str) -> str:
        """A record's answer as it stands after the question."""
        return fill(self.answer, record, where)

    def possible(self, record: Record, where: str) -> list[str]:
        """A record's possible answers, by themselves."""
        if self.options_field and self.options_field not in record:
            raise UserError(
                f"{where}: there is no field {self.options_field!r} among "
                f"{', '.join(map(repr, record)) or 'none'}; name the right one as options_field."
            )
        options = record[self.options_field] if self.options_field else list(self.options)
        if (
            isinstance(options, list)
            and all(isinstance(one, str) for one in options)
            and 2 <= len(options) == len(set(options))
        ):
            return options
        raise UserError(
            f"{where}: the options are {str(options)[:60]}, but must be a list of two or more "
            f"different strings."
        )

    def continuations(self, record: Record, where: str) -> list[str]:
        """A record's possible answers, as they stand after the question."""
        [name] = names(self.answer)
        return [fill(self.answer, {name: one}, where) for one in self.possible(record, where)]

    def right(self, record: Record, where: str) -> int:
        """Which of the possible answers is the record's own."""
        solution = self.solution(record, where)
        continuations = self.continuations(record, where)
        if solution not in continuations:
            raise UserError(
                f"{where}: the answer {solution!r} is not among the options "
                f"({', '.join(map(repr, continuations))}); correct the record or the options."
            )
        return continuations.index(solution)


@dataclass(frozen=True)
class Report:
    """How often a model chose the right answer, in percent, and what it chose."""

    accuracy: float
    majority: float  # what always choosing the commonest place among the options would give
    n: int
    predictions: list[str]


def few_shot_accuracy(
    model: Chooser,
    records: Sequence[Record],
    examples_pool: Sequence[Record],
    few_shot: FewShot,
    shots: int = 0,
    seed: int = 0,
    normalize: Normalize = "none",
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Ask a model about each record after `shots` examples, none of them the record itself.

    `progress` is told how many records are done.
    """
    if not records:
        raise UserError("There is no record to ask about; give at least one.")
    located = [(record, f"Record {number}") for number, record in enumerate(records, 1)]
    right = [few_shot.right(*one) for one in located]
    options = [few_shot.continuations(*one) for one in located]
    drawn = _draw(records, examples_pool, few_shot, shots, seed)
    prompts = [
        few_shot.prompt(record, examples, where)
        for (record, where), examples in zip(located, drawn, strict=True)
    ]
    chosen: list[int] = []
    for start in range(0, len(records), RECORDS_AT_A_TIME):
        part = slice(start, start + RECORDS_AT_A_TIME)
        choices = model.choose(prompts[part], options[part], normalize)
        chosen += [choice.index for choice in choices]
        if progress:
            progress(len(choices))
    predictions = [
        few_shot.possible(*one)[index] for one, index in zip(located, chosen, strict=True)
    ]
    hits = sum(one == other for one, other in zip(chosen, right, strict=True))
    commonest = max(Counter(right).values())
    n = len(records)
    return Report(100 * hits / n, 100 * commonest / n, n, predictions)


def _draw(
    records: Sequence[Record],
    pool: Sequence[Record],
    few_shot: FewShot,
    shots: int,
    seed: int,
) -> list[list[Record]]:
    """Draw each record's examples; one that asks the same question would give the answer away."""
    if shots < 0:
        raise UserError(f"The number of shots is {shots}, but cannot be below 0.")
    asked: list[str] = []
    for number, example in enumerate(pool if shots else [], 1):
        few_shot.right(example, f"Example {number} of the pool")
        asked.append(few_shot.question(example, f"Example {number} of the pool"))
    counts = Counter(asked)
    drawn: list[list[Record]] = []
    for number, record in enumerate(records, 1):
        question = few_shot.question(record, f"Record {number}")
        same = counts[question]
        if shots > len(asked) - same:
            raise UserError(
                f"The number of shots is {shots}, but the pool holds {len(asked) - same} examples "
                f"that record {number} may see; take fewer shots or a larger pool."
            )
        # With as many more as there are of the same question, enough are left in any case.
        random_order = random.Random(f"{seed}/{number}")
        sample = random_order.sample(range(len(asked)), shots + same)
        others = [index for index in sample if asked[index] != question]
        drawn.append([pool[index] for index in others[:shots]])
    return drawn
