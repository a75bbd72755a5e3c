"""How good a classifier is: each class's precision, recall and F1, their means, the confusions."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence, Sized
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qkv.errors import UserError
from qkv.evaluate.scores import Score

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Figures:
    """Precision, recall and F1 of a class or of a mean, as shares, and how many gold ones it has.

    A share of nothing is 0.
    """

    precision: float
    recall: float
    f1: float
    support: int

    @classmethod
    def of_counts(cls, right: int, found: int, gold: int) -> Figures:
        """From how many were found, how many there are, and how many of them are the same."""
        return cls(share(right, found), share(right, gold), share(2 * right, found + gold), gold)

    def row(self, name: str) -> list[str]:
        """The line of a table, in percent."""
        shares = (self.precision, self.recall, self.f1)
        return [name, *(f"{100 * value:.2f}" for value in shares), str(self.support)]


@dataclass(frozen=True)
class Report:
    """What was right and what was not, class by class; shares are between 0 and 1.

    `confusion` (gold in rows, found in columns) and `matthews` are there where each text has one
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
        """The figures that stand for the whole, in percent."""
        scores = [Score("accuracy", 100 * self.accuracy), Score("macro F1", 100 * self.macro.f1)]
        if self.micro is not None:
            scores.append(Score("micro F1", 100 * self.micro.f1))
        if self.matthews is not None:
            scores.append(Score("MCC", 100 * self.matthews))
        return scores

    def table(self) -> str:
        """A line for each class and each mean, in percent."""
        classes = zip(self.labels, self.classes, strict=True)
        means = {"micro": self.micro, "macro": self.macro, "weighted": self.weighted}
        return aligned(
            [
                ["", "precision", "recall", "F1", "support"],
                *(figures.row(label) for label, figures in classes),
                [],
                ["accuracy", "", "", f"{100 * self.accuracy:.2f}", str(self.size)],
                *(figures.row(name) for name, figures in means.items() if figures is not None),
            ]
        )

    def matrix(self) -> str:
        """The confusion matrix: a line for each gold class, a column for each found one."""
        if self.confusion is None:
            raise UserError(
                "There is no confusion matrix of several labels a text; see the table instead."
            )
        rows = zip(self.labels, self.confusion.tolist(), strict=True)
        lines = [[label, *map(str, counts)] for label, counts in rows]
        return aligned([["gold \\ found", *self.labels], *lines])


def classification_report(
    found: Sequence[str], gold: Sequence[str], labels: Sequence[str]
) -> Report:
    """Compare the one label found for each text with the gold one.

    `labels` are all that occur on either side, in the order in which they are to be shown.
    """
    check_sizes(found, gold)
    confusion = _confusion(found, gold, labels)
    right, of_found, of_gold = confusion.diagonal(), confusion.sum(axis=0), confusion.sum(axis=1)
    classes = _classes(right, of_found, of_gold)
    return Report(
        labels=tuple(labels),
        classes=classes,
        accuracy=share(int(right.sum()), len(gold)),
        macro=_mean(classes, np.ones(len(classes))),
        weighted=_mean(classes, of_gold),
        size=len(gold),
        matthews=_matthews(right, of_found, of_gold),
        confusion=confusion,
    )


def multilabel_report(
    found: Sequence[Collection[str]], gold: Sequence[Collection[str]], labels: Sequence[str]
) -> Report:
    """Compare the labels found for each text, any number of them, with the gold ones.

    The accuracy is the share of texts with all labels right. `labels` are all that occur on
    either side.
    """
    check_sizes(found, gold)
    pairs = [(set(one), set(other)) for one, other in zip(found, gold, strict=True)]
    right = _count([one & other for one, other in pairs], labels)
    of_found = _count([one for one, _ in pairs], labels)
    of_gold = _count([other for _, other in pairs], labels)
    classes = _classes(right, of_found, of_gold)
    return Report(
        labels=tuple(labels),
        classes=classes,
        accuracy=share(sum(one == other for one, other in pairs), len(pairs)),
        macro=_mean(classes, np.ones(len(classes))),
        weighted=_mean(classes, of_gold),
        size=len(pairs),
        micro=Figures.of_counts(int(right.sum()), int(of_found.sum()), int(of_gold.sum())),
    )


def share(part: float, whole: float) -> float:
    """The ratio of two counts; 0 where there is nothing to have a share of."""
    return part / whole if whole else 0.0


def check_sizes(found: Sized, gold: Sized) -> None:
    """Say so where there is not one gold answer for each found one, or none at all."""
    if len(found) != len(gold):
        raise UserError(
            f"There are {len(found)} answers but {len(gold)} gold ones; give one for each."
        )
    if len(gold) == 0:
        raise UserError("There is nothing to score: there are no gold answers.")


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Text in columns, the first to the left and the others to the right.

    Chinese characters are two columns wide on a terminal, which `str.ljust` does not know.
    """
    n_columns = max(map(len, rows))
    filled = [[*row, *[""] * (n_columns - len(row))] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*filled, strict=True)]
    return "\n".join(_line(row, widths) for row in filled)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padding = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
    others = (space + cell for cell, space in zip(row[1:], padding[1:], strict=True))
    return "  ".join([row[0] + padding[0], *others]).rstrip()


def _width(text: str) -> int:
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0  # accents and joiners stand on the character before
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _confusion(found: Sequence[str], gold: Sequence[str], labels: Sequence[str]) -> Counts:
    places = _places(labels, {*found, *gold})
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)  # (C, C)
    rows, columns = [places[label] for label in gold], [places[label] for label in found]
    np.add.at(confusion, (rows, columns), 1)
    return confusion


def _count(texts: Sequence[set[str]], labels: Sequence[str]) -> Counts:
    counts = Counter(label for text in texts for label in text)
    _places(labels, set(counts))
    return np.array([counts[label] for label in labels], dtype=np.int64)  # (C,)


def _places(labels: Sequence[str], used: set[str]) -> dict[str, int]:
    places = {label: place for place, label in enumerate(labels)}
    if len(places) < len(labels):
        raise ValueError(f"a label stands twice among {list(labels)}")
    if unknown := used - places.keys():
        raise ValueError(f"the labels {sorted(unknown)} are not among {list(labels)}")
    return places


def _classes(right: Counts, found: Counts, gold: Counts) -> tuple[Figures, ...]:
    counts = zip(right.tolist(), found.tolist(), gold.tolist(), strict=True)
    return tuple(Figures.of_counts(*of_class) for of_class in counts)


def _mean(classes: Sequence[Figures], weights: npt.NDArray[np.generic]) -> Figures:
    shares = np.array([(one.precision, one.recall, one.f1) for one in classes])  # (C, 3)
    total = weights.astype(np.float64).sum()
    mean = weights @ shares / total if total else np.zeros(3)
    precision, recall, f1 = mean.tolist()
    return Figures(precision, recall, f1, sum(one.support for one in classes))


def _matthews(right: Counts, found: Counts, gold: Counts) -> float:
    """The correlation of found and gold for any number of classes (Gorodkin 2004), or 0."""
    size, found, gold = int(gold.sum()), found.astype(np.float64), gold.astype(np.float64)
    together = size * int(right.sum()) - float(found @ gold)
    spread = (size**2 - float(found @ found)) * (size**2 - float(gold @ gold))
    return share(together, spread**0.5)
