"""Tagging schemes: how labels of single words mark entities of several words.

"in New York" is O B-place I-place in IOB2, and O B-place E-place in BIOES, where a single word is
S-place. IOB1 writes I- everywhere, and B- only to part an entity from one of its kind before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Scheme = Literal["iob1", "iob2", "bioes"]
OUTSIDE = "O"
PREFIXES: dict[Scheme, str] = {"iob1": "BI", "iob2": "BI", "bioes": "BIES"}


class Entity(NamedTuple):
    """An entity and the words [start, end) that it covers."""

    kind: str
    start: int
    end: int


class Transitions(NamedTuple):
    """The valid sequences of C labels: which labels may be first, follow each other, be last."""

    begin: npt.NDArray[np.bool_]  # (C,)
    follow: npt.NDArray[np.bool_]  # (C, C): follow[i, j] says that j may come right after i
    end: npt.NDArray[np.bool_]  # (C,)


def guess_scheme(sequences: Iterable[Sequence[str]]) -> Scheme | None:
    """Guess the scheme that labels are written in; None if they mark no entities (part of speech).

    A few mistakes in the labels do not matter: what is neither BIOES nor flawless IOB1 is IOB2.
    """
    pairs = {pair for labels in sequences for pair in pairwise([OUTSIDE, *labels])}
    labels = {after for _, after in pairs}
    if not all(_belongs(label, "bioes") for label in labels):
        return None
    if not all(_belongs(label, "iob2") for label in labels):
        return "bioes"
    as_iob1, as_iob2 = (
        all(may_follow(*pair, scheme) for pair in pairs) for scheme in ("iob1", "iob2")
    )
    return "iob1" if as_iob1 and not as_iob2 else "iob2"


def entities(labels: Sequence[str], scheme: Scheme) -> list[Entity]:
    """Read the entities that labels mark, in order.

    Invalid sequences are read as conlleval does: a label that continues nothing begins an entity.
    """
    read: list[Entity] = []
    last_prefix, last_kind = OUTSIDE, ""
    for index, (prefix, kind) in enumerate(_split(label, scheme) for label in labels):
        begins = prefix in "BS" or last_prefix in "ES" or last_kind != kind
        if prefix != OUTSIDE and begins:
            read.append(Entity(kind, index, index + 1))
        elif prefix != OUTSIDE:
            read[-1] = read[-1]._replace(end=index + 1)
        last_prefix, last_kind = prefix, kind
    return read


def may_follow(before: str, after: str, scheme: Scheme) -> bool:
    """Whether the second label may come right after the first.

    A sequence may begin with what follows O, and end with what O follows.
    """
    (prefix, kind), (next_prefix, next_kind) = _split(before, scheme), _split(after, scheme)
    if scheme == "iob1":
        return next_prefix != "B" or kind == next_kind
    if scheme == "iob2":
        return next_prefix != "I" or kind == next_kind
    goes_on = next_prefix in "IE"
    return goes_on == (prefix in "BI") and (not goes_on or kind == next_kind)


def transitions(labels: Sequence[str], scheme: Scheme | None) -> Transitions:
    """List which sequences of these labels are valid; all of them where there is no scheme."""
    if scheme is None:
        n = len(labels)
        return Transitions(np.ones(n, np.bool_), np.ones((n, n), np.bool_), np.ones(n, np.bool_))
    follow = [[may_follow(before, after, scheme) for after in labels] for before in labels]
    begin = [may_follow(OUTSIDE, label, scheme) for label in labels]
    end = [may_follow(label, OUTSIDE, scheme) for label in labels]
    return Transitions(np.array(begin), np.array(follow), np.array(end))


def label_set(sequences: Iterable[Sequence[str]], scheme: Scheme | None) -> list[str]:
    """List all labels, O first, with those of the scheme that happen not to occur."""
    labels = set(chain.from_iterable(sequences))
    if scheme is not None:
        kinds = {_split(label, scheme)[1] for label in labels} - {""}
        labels |= {f"{prefix}-{kind}" for prefix in PREFIXES[scheme] for kind in kinds}
        labels.add(OUTSIDE)
    return sorted(labels, key=lambda label: (label != OUTSIDE, label))


def _belongs(label: str, scheme: Scheme) -> bool:
    prefix, _, kind = label.partition("-")
    return label == OUTSIDE or (len(prefix) == 1 and prefix in PREFIXES[scheme] and kind != "")


def _split(label: str, scheme: Scheme) -> tuple[str, str]:
    """Split a label into its prefix and the kind of entity; O has no kind."""
    if not _belongs(label, scheme):
        raise ValueError(f"{label!r} is no label of the scheme {scheme}")
    prefix, _, kind = label.partition("-")
    return prefix, kind
