"""Few-shot prompts: solved examples, an open question, and the possible answers.

As Brown et al. (2020, section 2.4) do it: the examples are drawn at random from a pool, anew for
each record, and an option's score is its log-probability after the prompt.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from qkv.errors import UserError
from qkv.text import fill, names

Record = Mapping[str, object]
Normalize = Literal["none", "tokens", "bytes"]


@dataclass(frozen=True)
class Choice:
    """The option that a model prefers, and the score of each."""

    index: int
    scores: list[float]


class Chooser(Protocol):
    """A model that chooses which of some options is the likeliest to follow a prompt."""

    def choose(
        self, prompts: Sequence[str], options: Sequence[Sequence[str]], normalize: Normalize
    ) -> list[Choice]:
        """Choose an option for each prompt by log-probability, or by that of a token or byte."""


@dataclass(frozen=True)
class FewShot:
    """How a record is asked and answered, such as "Review: {text}\\nSentiment:" and " {label}".

    The possible answers are `options`, the same for all, or a list in each record's
    `options_field`. They replace the field of `answer`.
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
        self, record: Record, examples: Sequence[Record] = (), where: str = "The record"
    ) -> str:
        """The instruction, the solved examples and the record's open question."""
        start = [self.instruction] if self.instruction else []
        solved = [fill(self.template + self.answer, example, "An example") for example in examples]
        return self.separator.join([*start, *solved, fill(self.template, record, where)])

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
            and all(isinstance(option, str) for option in options)
            and 2 <= len(options) == len(set(options))
        ):
            return options
        raise UserError(
            f"{where}: the options are {str(options)[:60]}, but must be a list of two or more "
            f"different strings."
        )

    def continuations(self, record: Record, where: str) -> list[str]:
        """A record's possible answers as they follow the question."""
        [name] = names(self.answer)
        return [fill(self.answer, {name: option}, where) for option in self.possible(record, where)]

    def right(self, record: Record, where: str) -> int:
        """Index of the record's own answer among the possible ones."""
        solution = fill(self.answer, record, where)
        continuations = self.continuations(record, where)
        if solution not in continuations:
            raise UserError(
                f"{where}: the answer {solution!r} is not among the options "
                f"({', '.join(map(repr, continuations))}); correct the record or the options."
            )
        return continuations.index(solution)

    def prompts(
        self, records: Sequence[Record], pool: Sequence[Record], shots: int = 0, seed: int = 0
    ) -> list[str]:
        """Ask each record after `shots` examples drawn from the pool.

        None of them asks the record's own question, which would give the answer away.
        """
        if shots < 0:
            raise UserError(f"The number of shots is {shots}, but cannot be below 0.")
        asked: list[str] = []
        for number, example in enumerate(pool if shots else [], 1):
            self.right(example, f"Example {number} of the pool")
            asked.append(fill(self.template, example, f"Example {number} of the pool"))
        counts = Counter(asked)
        prompts: list[str] = []
        for number, record in enumerate(records, 1):
            question = fill(self.template, record, f"Record {number}")
            same = counts[question]
            if shots > len(asked) - same:
                raise UserError(
                    f"The number of shots is {shots}, but the pool holds {len(asked) - same} "
                    f"examples that record {number} may see; take fewer shots or a larger pool."
                )
            # With as many more as ask the same question, enough are left in any case.
            sample = random.Random(f"{seed}/{number}").sample(range(len(asked)), shots + same)
            others = [pool[index] for index in sample if asked[index] != question]
            prompts.append(self.prompt(record, others[:shots], f"Record {number}"))
        return prompts
