"""What a lab is: a claim, a fair experiment, and the verdict that its figures support."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

M = TypeVar("M")  # what a lab measures: a frozen dataclass of plain numbers, lists and strings

Outcome = Literal["holds", "holds when", "does not hold"]


@dataclass(frozen=True)
class Words:
    """The same said in English and in Chinese."""

    en: str
    zh: str


@dataclass(frozen=True)
class Table:
    """Figures as a person reads them: a title, headings, and cells already rounded."""

    title: Words
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """What the figures say of the claim, and which figures."""

    outcome: Outcome
    because: Words  # one to three sentences with the numbers; for "holds when", the condition first


@dataclass(frozen=True)
class Settings:
    """How a lab is run."""

    full: bool = False  # longer: more steps, seeds or sizes
    seed: int = 0
    tell: Callable[[str], None] = lambda step: None  # is told what is being done now


@dataclass(frozen=True)
class Lab(Generic[M]):
    """One experiment: `measure` does the work, the rest reads what it measured."""

    number: int
    name: str
    title: Words
    claim: Words  # what the notes say, in our words
    experiment: Words  # what is done, and what is held equal
    measure: Callable[[Settings], M]
    tables: Callable[[M], tuple[Table, ...]]
    draw: Callable[[M], Figure]
    judge: Callable[[M], Verdict]
    animate: Callable[[M, Path], Any] | None = None  # writes an animated GIF
    needs: str | None = None  # a pulled model without which it cannot run
