"""How good a classifier is: each class's precision, recall and F1, their means, the confusions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from qkv.errors import UserError
from qkv.evaluation.scores import Score, check_sizes

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Figures:
    """Precision, recall and F1 of a class or of a mean, as fractions, and its number of examples.

    A fraction of nothing is 0.
    """

    precision: float
    recall: float
    f1: float
    support: int

    @classmethod
    def of_counts(cls, right: int, found: int, gold: int) -> Figures:
        """Figures from the numbers of found and gold labels, and of those that are both."""
        return cls(
            fraction(right, found), fraction(right, gold), fraction(2 * right, found + gold), gold
        )

    def row(self, name: str) -> list[str]:
        """A line of a table, in percent."""
        values = (self.precision, self.recall, self.f1)
        return [name, *(f"{100 * value:.2f}" for value in values), str(self.support)]


@dataclass(frozen=True)
class ClassReport:
    """Figures by class, their means and the accuracy, as fractions.

    `confusion` (gold in rows, found in columns) and `matthews` are there where each example has one
    label, `micro` where it may have several: with one label it is the accuracy.
    """

    labels: tuple[str, ...]
    classes: tuple[Figures, ...]
    accuracy: float
    macro: Figures
    weighted: Figures
    size: int
    micro: Figures | None = None
    matthews: float | None = None
    confusion: Counts | None = field(default=None, compare=False)

    def scores(self) -> list[Score]:
        """Scores of the whole, in percent."""
        scores = [Score("accuracy", 100 * self.accuracy), Score("macro F1", 100 * self.macro.f1)]
        if self.micro is not None:
            scores.append(Score("micro F1", 100 * self.micro.f1))
        if self.matthews is not None:
            scores.append(Score("MCC", 100 * self.matthews))
        return scores

    def tables(self) -> list[str]:
        """Figures by class in percent and, where there is one, the confusion matrix."""
        return [self.table()] + ([] if self.confusion is None else [self.matrix()])

    def table(self) -> str:
        """A line for each class and each mean, in percent."""
        accuracy = ["accuracy", "", "", f"{100 * self.accuracy:.2f}", str(self.size)]
        means = (figures.row(name) for name, figures in self._means().items())
        return figures_table(self._by_class(), [accuracy, *means])

    def matrix(self) -> str:
        """The confusion matrix: a line for each gold class, a column for each found one."""
        if self.confusion is None:
            raise UserError(
                "There is no confusion matrix of several labels a text; see the table instead."
            )
        rows = zip(self.labels, self.confusion.tolist(), strict=True)
        lines = [[label, *map(str, counts)] for label, counts in rows]
        return aligned([["gold \\ found", *self.labels], *lines])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        content: dict[str, Any] = {
            "classes": as_dicts(self._by_class()),
            "means": as_dicts(self._means()),
        }
        if self.confusion is not None:
            content["confusion"] = {"labels": self.labels, "matrix": self.confusion.tolist()}
        return content

    def _by_class(self) -> dict[str, Figures]:
        return dict(zip(self.labels, self.classes, strict=True))

    def _means(self) -> dict[str, Figures]:
        micro = {"micro": self.micro} if self.micro is not None else {}
        return {**micro, "macro": self.macro, "weighted": self.weighted}


def classification_report(
    found: Sequence[str], gold: Sequence[str], labels: Sequence[str]
) -> ClassReport:
    """Compare the one label found for each example with the gold one.

    `labels` are all that occur on either side, in the order in which they are to be shown.
    """
    check_sizes(found, gold)
    index = {label: number for number, label in enumerate(labels)}
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)  # (C, C)
    np.add.at(confusion, ([index[label] for label in gold], [index[label] for label in found]), 1)
    right, of_found, of_gold = confusion.diagonal(), confusion.sum(axis=0), confusion.sum(axis=1)
    return ClassReport(
        **_common(labels, right, of_found, of_gold),
        accuracy=fraction(int(right.sum()), len(gold)),
        size=len(gold),
        matthews=_matthews(right, of_found, of_gold),
        confusion=confusion,
    )


def multilabel_report(
    found: Sequence[Collection[str]], gold: Sequence[Collection[str]], labels: Sequence[str]
) -> ClassReport:
    """Compare the labels found for each example, any number of them, with the gold ones.

    The accuracy is the fraction of examples with all labels right. `labels` are all that occur on
    either side.
    """
    check_sizes(found, gold)
    sets = [(set(ours), set(theirs)) for ours, theirs in zip(found, gold, strict=True)]
    right = _count((ours & theirs for ours, theirs in sets), labels)
    of_found = _count((ours for ours, _ in sets), labels)
    of_gold = _count((theirs for _, theirs in sets), labels)
    return ClassReport(
        **_common(labels, right, of_found, of_gold),
        accuracy=fraction(sum(ours == theirs for ours, theirs in sets), len(sets)),
        size=len(sets),
        micro=Figures.of_counts(int(right.sum()), int(of_found.sum()), int(of_gold.sum())),
    )


def fraction(part: float, whole: float) -> float:
    """The ratio of two counts; 0 where the whole is 0."""
    return part / whole if whole else 0.0


def as_dicts(named: Mapping[str, Figures]) -> dict[str, Any]:
    """Figures as plain values for JSON."""
    return {name: asdict(figures) for name, figures in named.items()}


def figures_table(named: Mapping[str, Figures], below: Sequence[Sequence[str]]) -> str:
    """A table with a line for each of the figures, in percent, and further lines below."""
    head = ["", "precision", "recall", "F1", "support"]
    rows = [figures.row(name) for name, figures in named.items()]
    return aligned([head, *rows, [], *below])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Text in columns, the first to the left and the others to the right.

    Chinese characters are two columns wide on a terminal, which `str.ljust` does not know.
    """
    n_columns = max(map(len, rows))
    filled = [[*row, *[""] * (n_columns - len(row))] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*filled, strict=True)]
    lines = []
    for row in filled:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        others = (space + cell for cell, space in zip(row[1:], spaces[1:], strict=True))
        lines.append("  ".join([row[0] + spaces[0], *others]).rstrip())
    return "\n".join(lines)


def _count(texts: Iterable[set[str]], labels: Sequence[str]) -> Counts:
    counts = Counter(label for text in texts for label in text)
    return np.array([counts[label] for label in labels], dtype=np.int64)  # (C,)


def _common(labels: Sequence[str], right: Counts, found: Counts, gold: Counts) -> dict[str, Any]:
    """The fields that both kinds of report compute from counts (C,)."""
    counts = zip(right.tolist(), found.tolist(), gold.tolist(), strict=True)
    classes = tuple(Figures.of_counts(*of_class) for of_class in counts)
    return {
        "labels": tuple(labels),
        "classes": classes,
        "macro": _mean(classes, np.ones(len(classes))),
        "weighted": _mean(classes, gold),
    }


def _mean(classes: Sequence[Figures], weights: npt.NDArray[np.generic]) -> Figures:
    values = np.array([(figures.precision, figures.recall, figures.f1) for figures in classes])
    total = weights.astype(np.float64).sum()
    precision, recall, f1 = (weights @ values / total if total else np.zeros(3)).tolist()
    return Figures(precision, recall, f1, sum(figures.support for figures in classes))


def _matthews(right: Counts, found: Counts, gold: Counts) -> float:
    """The correlation of found and gold for any number of classes (Gorodkin 2004), or 0."""
    size, found, gold = int(gold.sum()), found.astype(np.float64), gold.astype(np.float64)
    together = size * int(right.sum()) - float(found @ gold)
    spread = (size**2 - float(found @ found)) * (size**2 - float(gold @ gold))
    return fraction(together, spread**0.5)
