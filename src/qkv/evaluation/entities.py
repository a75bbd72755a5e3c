"""How good a tagger is: entities found whole, as CoNLL's script counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qkv.errors import UserError
from qkv.evaluation.classification import Figures, as_dicts, figures_table, fraction
from qkv.evaluation.scores import Score, check_sizes
from qkv.text import tagging


@dataclass(frozen=True)
class EntityReport:
    """How many entities were found with the right type, first and last token, as fractions.

    `whole` counts all entities together, which CoNLL reports; `accuracy` is that of the labels.
    """

    types: dict[str, Figures]
    whole: Figures
    accuracy: float
    n_tokens: int

    def scores(self) -> list[Score]:
        """Scores of the whole, in percent."""
        return [
            Score("entity F1", 100 * self.whole.f1),
            Score("entity precision", 100 * self.whole.precision),
            Score("entity recall", 100 * self.whole.recall),
            Score("token accuracy", 100 * self.accuracy),
        ]

    def tables(self) -> list[str]:
        """A table with a line for each type of entity and one for all together, in percent."""
        accuracy = ["token accuracy", "", "", f"{100 * self.accuracy:.2f}", str(self.n_tokens)]
        return [figures_table(self.types, [self.whole.row("all entities"), accuracy])]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"types": as_dicts(self.types), "whole": asdict(self.whole)}


def entity_report(found: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> EntityReport:
    """Compare the labels found for each sentence's tokens with the gold ones.

    Labels are O, or B-, I-, E- or S- and a type, in whatever scheme: an I- that follows O or
    another type begins an entity all the same.
    """
    _check_lengths(found, gold)
    right, of_found, of_gold = Counter[str](), Counter[str](), Counter[str]()
    for sentence in zip(found, gold, strict=True):
        ours, theirs = (_entities(labels) for labels in sentence)
        right.update(entity.kind for entity in ours & theirs)
        of_found.update(entity.kind for entity in ours)
        of_gold.update(entity.kind for entity in theirs)
    n_tokens = sum(map(len, gold))
    same = sum(a == b for pair in zip(found, gold, strict=True) for a, b in zip(*pair, strict=True))
    return EntityReport(
        types={
            kind: Figures.of_counts(right[kind], of_found[kind], of_gold[kind])
            for kind in sorted(of_found | of_gold)
        },
        whole=Figures.of_counts(right.total(), of_found.total(), of_gold.total()),
        accuracy=fraction(same, n_tokens),
        n_tokens=n_tokens,
    )


def _entities(labels: Sequence[str]) -> set[tagging.Entity]:
    try:
        return set(tagging.entities(labels, "bioes"))  # reads the labels of the other schemes too
    except ValueError as error:
        raise UserError(
            f"{error}: that is O, or one of B-, I-, E-, S- and a type; write the labels so, as in "
            f"B-LOC."
        ) from error


def _check_lengths(found: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> None:
    check_sizes(found, gold)
    for number, (ours, theirs) in enumerate(zip(found, gold, strict=True), start=1):
        if len(ours) != len(theirs):
            raise UserError(
                f"Sentence {number} has {len(ours)} labels but {len(theirs)} gold ones; "
                f"give one for each token."
            )
    if not any(gold):
        raise UserError("There is nothing to score: the gold sentences hold no tokens.")
