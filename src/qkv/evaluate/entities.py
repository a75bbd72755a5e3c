"""How good a tagger is: entities found whole, as CoNLL's script counts them, or strictly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from qkv.errors import UserError
from qkv.evaluate.classification import Figures, aligned, check_sizes, share
from qkv.evaluate.scores import Score

Scheme = Literal["auto", "iob1", "iob2", "bioes"]
Entity = tuple[str, int, int]  # type, first token, the token after the last
PREFIXES: dict[Scheme, str] = {"auto": "BIES", "iob1": "BI", "iob2": "BI", "bioes": "BIES"}


class _Tag(NamedTuple):
    prefix: str
    kind: str


OUTSIDE = _Tag("O", "")


@dataclass(frozen=True)
class EntityReport:
    """How many entities were found with the right type, first and last token; figures are shares.

    `whole` counts all entities together, which CoNLL reports; `accuracy` is that of the labels.
    """

    types: dict[str, Figures]
    whole: Figures
    accuracy: float
    n_tokens: int

    def scores(self) -> list[Score]:
        """The figures that stand for the whole, in percent."""
        return [
            Score("entity F1", 100 * self.whole.f1),
            Score("entity precision", 100 * self.whole.precision),
            Score("entity recall", 100 * self.whole.recall),
            Score("token accuracy", 100 * self.accuracy),
        ]

    def table(self) -> str:
        """A line for each type of entity and one for all together, in percent."""
        return aligned(
            [
                ["", "precision", "recall", "F1", "support"],
                *(figures.row(name) for name, figures in self.types.items()),
                [],
                self.whole.row("all entities"),
                ["token accuracy", "", "", f"{100 * self.accuracy:.2f}", str(self.n_tokens)],
            ]
        )


def entities(labels: Sequence[str], scheme: Scheme = "auto", strict: bool = False) -> list[Entity]:
    """The entities that a sentence's labels spell, in order: type, start and end (not included).

    Usually as CoNLL's script reads them, whatever the scheme: an I- that follows O or another type
    begins an entity all the same. `strict` passes over what breaks the rules of `scheme`, as
    seqeval's strict mode does.
    """
    if scheme not in PREFIXES:
        raise UserError(f"Unknown scheme {scheme!r}; it may be one of {', '.join(PREFIXES)}.")
    if strict and scheme == "auto":
        raise UserError("Strict entities need a scheme: say whether it is iob1, iob2 or bioes.")
    tags = [_read(label, scheme) for label in labels]
    runs = _runs(tags)
    if strict:
        runs = (kept for run in runs if (kept := _lawful(tags, run, scheme)))
    return [(tags[run.start].kind, run.start, run.stop) for run in runs]


def entity_report(
    found: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    scheme: Scheme = "auto",
    strict: bool = False,
) -> EntityReport:
    """Compare the labels found for each sentence's tokens with the gold ones."""
    _check_lengths(found, gold)
    right, of_found, of_gold = Counter[str](), Counter[str](), Counter[str]()
    for one, other in zip(found, gold, strict=True):
        ours, theirs = set(entities(one, scheme, strict)), set(entities(other, scheme, strict))
        right.update(kind for kind, _, _ in ours & theirs)
        of_found.update(kind for kind, _, _ in ours)
        of_gold.update(kind for kind, _, _ in theirs)
    n_tokens = sum(map(len, gold))
    same = sum(a == b for pair in zip(found, gold, strict=True) for a, b in zip(*pair, strict=True))
    return EntityReport(
        types={
            kind: Figures.of_counts(right[kind], of_found[kind], of_gold[kind])
            for kind in sorted(of_found | of_gold)
        },
        whole=Figures.of_counts(right.total(), of_found.total(), of_gold.total()),
        accuracy=share(same, n_tokens),
        n_tokens=n_tokens,
    )


def _read(label: str, scheme: Scheme) -> _Tag:
    if label == "O":
        return OUTSIDE
    prefix, hyphen, kind = label.partition("-")
    if prefix not in tuple(PREFIXES[scheme]) or (hyphen and not kind):
        known = ", ".join(f"{letter}-" for letter in PREFIXES[scheme])
        raise UserError(
            f"{label!r} is no label of an entity: that is O, or one of {known} and a type; "
            f"write the labels so, as in B-LOC."
        )
    return _Tag(prefix, kind or "_")  # a prefix alone is an entity without a type


def _continues(before: _Tag, tag: _Tag) -> bool:
    return before.prefix in "BI" and tag.prefix in "IE" and before.kind == tag.kind


def _runs(tags: Sequence[_Tag]) -> Iterator[range]:
    """The stretches of tokens that belong together."""
    start = 0
    for place in range(1, len(tags) + 1):
        if place == len(tags) or not _continues(tags[place - 1], tags[place]):
            if tags[start] != OUTSIDE:
                yield range(start, place)
            start = place


def _lawful(tags: Sequence[_Tag], run: range, scheme: Scheme) -> range:
    """What a scheme recognises as an entity in a run: all of it, nothing, or (IOB1) its end."""
    first, last = tags[run.start].prefix, tags[run.stop - 1].prefix
    if scheme == "iob1":
        return _lawful_iob1(tags, run)
    if scheme == "iob2":
        return run if first == "B" else range(0)
    return run if first + last in ("SS", "BE") else range(0)


def _lawful_iob1(tags: Sequence[_Tag], run: range) -> range:
    """IOB1 has B- only where an entity follows another of its type; seqeval's reading of the rest.

    A B- elsewhere is passed over, and a single one also where a B- of another type follows it.
    """
    if tags[run.start].prefix == "I":
        return run
    before = tags[run.start - 1] if run.start else OUTSIDE
    after = tags[run.stop] if run.stop < len(tags) else OUTSIDE
    if before.kind != tags[run.start].kind:
        return run[1:]
    broken = len(run) == 1 and after.prefix == "B" and after.kind != tags[run.start].kind
    return range(0) if broken else run


def _check_lengths(found: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> None:
    check_sizes(found, gold)
    for number, (one, other) in enumerate(zip(found, gold, strict=True), start=1):
        if len(one) != len(other):
            raise UserError(
                f"Sentence {number} has {len(one)} labels but {len(other)} gold ones; "
                f"give one for each token."
            )
    if not any(gold):
        raise UserError("There is nothing to score: the gold sentences hold no tokens.")
