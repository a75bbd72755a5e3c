"""What a lab is: a claim, a fair experiment, and the verdict that its figures support.

A claim is split into sub-claims. Each is one or more comparisons of measured intervals, and holds
if they are true wherever in its interval each figure lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from qkv_labs.catalogue import NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

M = TypeVar("M")  # what a lab measures: a frozen dataclass of plain numbers, lists and strings
T = TypeVar("T")

Outcome = Literal["holds", "refuted", "undecided"]
Relation = Literal[">", "<", "≈"]
MARKS: dict[Outcome, str] = {"holds": "✓", "refuted": "✗", "undecided": "?"}


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


@dataclass(frozen=True)
class Interval:
    """A measured figure and the range in which it may lie."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, sample: Sequence[float], scale: float = 1) -> Interval:
        """Return the mean of a sample ± two standard errors."""
        middle = scale * fmean(sample)
        margin = abs(scale) * 2 * stdev(sample) / len(sample) ** 0.5 if len(sample) > 1 else 0.0
        return cls(middle, middle - margin, middle + margin)

    @classmethod
    def percent(cls, sample: Sequence[float], scale: float = 1) -> Interval:
        """Return the mean percentage of a sample ± two standard errors, within 0 and 100."""
        interval = cls.of(sample, scale)
        return cls(interval.middle, max(0.0, interval.low), min(100.0, interval.high))

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Return a figure that was counted or computed and not sampled."""
        return cls(value, value, value)

    @classmethod
    def share(cls, percent: float, n: int) -> Interval:
        """Return a percentage of n independent cases with its 95 % interval (Wilson's)."""
        p, z = percent / 100, 1.96
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        margin = z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
        return cls(percent, 100 * (centre - margin), 100 * (centre + margin))

    def show(self, form: str) -> str:
        """Write the figure, and its range in brackets unless it is a point."""
        middle = format(self.middle, form)
        if self.low == self.high:
            return middle
        return f"{middle} [{format(self.low, form)}, {format(self.high, form)}]"


@dataclass(frozen=True)
class Comparison:
    """A relation between two figures that a sub-claim asserts."""

    left: Interval
    relation: Relation
    right: Interval
    margin: float = 0.0  # the difference that > and < must exceed, and that ≈ allows
    left_name: str = ""  # English, as in the tables' cells
    right_name: str = ""
    form: str = ".1f"

    @property
    def outcome(self) -> Outcome:
        """Whether the relation is true for all values in both intervals, for none, or for some."""
        low, high = self.left.low - self.right.high, self.left.high - self.right.low
        if self.relation == "<":
            low, high = -high, -low
        if self.relation == "≈":
            holds = -self.margin <= low and high <= self.margin
            refuted = low > self.margin or high < -self.margin
        else:
            holds, refuted = low > self.margin, high <= self.margin
        return "holds" if holds else "refuted" if refuted else "undecided"

    def show(self, translate: Callable[[str], str] = str) -> str:
        """Write both figures with the relation that was observed, `?` where none is certain."""
        names = [translate(name) if name else "" for name in (self.left_name, self.right_name)]
        figures = self.left.show(self.form), self.right.show(self.form)
        left, right = (" ".join(filter(None, pair)) for pair in zip(names, figures, strict=True))
        return f"{left} {self._observed} {right}{self._allowance}"

    @property
    def _observed(self) -> str:
        """The relation between the left figure and the right one with its margin."""
        if self.outcome == "undecided":
            return "?"
        if self.left == self.right and not self.margin:
            return "="
        if self.outcome == "holds":
            return self.relation
        if self.relation == "≈":
            return ">" if self.left.middle > self.right.middle else "<"
        return "<" if self.relation == ">" else ">"

    @property
    def _allowance(self) -> str:
        if not self.margin:
            return ""
        if self.relation == "≈":
            return f" ± {self.margin:g}"
        sign = "+" if (self.margin > 0) == (self.relation == ">") else "−"
        return f" {sign} {abs(self.margin):.3g}"


def compare(
    left: Interval | float,
    relation: Relation,
    right: Interval | float,
    names: str | tuple[str, str] = "",
    margin: float = 0.0,
    form: str = ".1f",
) -> Comparison:
    """Compare two figures, of which both or the left one have names; a plain number is exact."""
    sides = [side if isinstance(side, Interval) else Interval.exact(side) for side in (left, right)]
    both = (names, "") if isinstance(names, str) else names
    return Comparison(sides[0], relation, sides[1], margin, *both, form)


class Figures(dict[str, Interval | float]):
    """Figures by the names that comparisons show."""

    def compare(
        self,
        left: str,
        relation: Relation,
        right: str | Interval | float,
        margin: float = 0.0,
        form: str = ".1f",
    ) -> Comparison:
        """Compare a figure with another of these, or with a figure that has no name."""
        if isinstance(right, str):
            return compare(self[left], relation, self[right], (left, right), margin, form)
        return compare(self[left], relation, right, left, margin, form)


@dataclass(frozen=True)
class Literature:
    """A published work, and whether it supports a sub-claim."""

    supports: bool
    source: str  # authors, year, title


@dataclass(frozen=True)
class SubClaim:
    """One statement of a claim, the comparisons that decide it, and what others found."""

    text: Words
    comparisons: list[Comparison]
    literature: Literature | None = None
    name: str = ""  # of its text, by which code refers to it; results do not hold it

    @property
    def outcome(self) -> Outcome:
        """Holds if every comparison does, is refuted if any is, and else is undecided.

        Without comparisons nothing was measured here, and it is undecided.
        """
        outcomes = {comparison.outcome for comparison in self.comparisons} or {"undecided"}
        return next(o for o in ("refuted", "undecided", "holds") if o in outcomes)

    @property
    def mark(self) -> str:
        """✓, ✗ or ?"""
        return MARKS[self.outcome]

    def to_dict(self) -> dict[str, Any]:
        """Return the sub-claim as plain values, with its outcome."""
        values = asdict(self)
        del values["name"]
        return {"outcome": self.outcome, **values}


@dataclass(frozen=True)
class Verdict:
    """What the figures say about each part of a claim."""

    sub_claims: Sequence[SubClaim]

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many sub-claims hold, are refuted and are undecided."""
        outcomes = [sub_claim.outcome for sub_claim in self.sub_claims]
        return {outcome: outcomes.count(outcome) for outcome in MARKS}

    def to_dict(self) -> dict[str, Any]:
        """Return all sub-claims as plain values."""
        return {"sub_claims": [sub_claim.to_dict() for sub_claim in self.sub_claims]}


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
    measure: Callable[[Settings], M]  # may seed the global random numbers
    tables: Callable[[M], Sequence[Table]]
    draw: Callable[[M], Figure]
    judge: Callable[[M], Verdict]
    animate: Callable[[M, Path], Any] | None = None  # writes an animated GIF
    needs: str | None = None  # a pulled model without which it cannot run

    @property
    def number(self) -> int:
        """Its position in the catalogue, from 1."""
        return NAMES.index(self.name) + 1
