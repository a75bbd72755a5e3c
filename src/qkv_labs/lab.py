"""What a lab is: a claim, a fair experiment, and the verdict that its figures support."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from qkv_labs.catalogue import NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

M = TypeVar("M")  # what a lab measures: a frozen dataclass of plain numbers, lists and strings
T = TypeVar("T")

Outcome = Literal["holds", "holds when", "does not hold"]


@dataclass(frozen=True)
class Words:
    """A text in English and in Chinese."""

    en: str = ""
    zh: str = ""

    def __add__(self, after: Words) -> Words:
        return Words(self.en + after.en, self.zh + after.zh)

    @classmethod
    def join(cls, parts: Iterable[Words | str], en: str = ", ", zh: str = "、") -> Words:
        """Join texts with a separator of each language; a plain string is the same in both."""
        texts = [Words(part, part) if isinstance(part, str) else part for part in parts]
        return cls(en.join(text.en for text in texts), zh.join(text.zh for text in texts))


@dataclass(frozen=True)
class Table:
    """A table of results: a title, column headings, and cells that are already rounded."""

    title: Words
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, title: Words, items: Iterable[Any], columns: Mapping[str, Any]) -> Table:
        """Make a row of each item; a column is a format of the item, `{0}`, or a function of it."""
        rows = [
            [
                cell.format(item) if isinstance(cell, str) else cell(item)
                for cell in columns.values()
            ]
            for item in items
        ]
        return cls(title, list(columns), rows)


@dataclass(frozen=True)
class Verdict:
    """What the figures say about the claim."""

    outcome: Outcome
    because: Words  # one to three sentences with the numbers; for "holds when", the condition first


@dataclass(frozen=True)
class Settings:
    """How a lab is run."""

    full: bool = False  # longer: more steps, seeds or sizes
    seed: int = 0
    tell: Callable[[str], None] = lambda step: None  # receives the name of each step

    def pick(self, quick: T, full: T) -> T:
        """Return the value for a quick run or for a full one."""
        return full if self.full else quick

    def seeds(self, quick: int, full: int) -> range:
        """Return the seeds of a quick run or of a full one."""
        return range(self.seed, self.seed + self.pick(quick, full))


@dataclass(frozen=True)
class Lab(Generic[M]):
    """An experiment: `measure` does the work, the other functions read what it measured."""

    name: str
    title: Words
    claim: Words  # a statement about the Transformer
    experiment: Words  # what is done, and what is held equal
    measure: Callable[[Settings], M]
    tables: Callable[[M], Sequence[Table]]
    draw: Callable[[M], Figure]
    judge: Callable[[M], Verdict]
    animate: Callable[[M, Path], Any] | None = None  # writes an animated GIF
    needs: str | None = None  # a pulled model without which it cannot run

    @property
    def number(self) -> int:
        """Its position in the catalogue, from 1."""
        return NAMES.index(self.name) + 1
