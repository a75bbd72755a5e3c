"""English word forms and word order, which Chinese does not mark."""

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import NamedTuple


class Agreement(Enum):
    """Which verb form a subject requires."""

    FIRST = "I"
    THIRD = "he, she, it"
    PLURAL = "we, you, they"


class Tense(Enum):
    """The verb groups of this grammar, two modal ones included."""

    PRESENT = "eats"
    PAST = "ate"
    FUTURE = "will eat"
    PROGRESSIVE = "is eating"
    CAN = "can eat"
    SHOULD = "should eat"


class Forms(NamedTuple):
    """The four forms of an English verb."""

    base: str
    third: str
    past: str
    ing: str


class VerbGroup(NamedTuple):
    """An auxiliary, which a question moves and a negation needs, and the main verb."""

    auxiliary: str
    main: str


def pairs(words: str) -> Iterator[tuple[str, str]]:
    """Read a table of two columns: "go went, see saw"; the second may be several words."""
    for row in words.split(", "):
        first, second = row.split(" ", 1)
        yield first, second


_IRREGULAR_PASTS = dict(
    pairs(
        "buy bought, draw drew, drink drank, eat ate, give gave, go went, have had, make made, "
        "read read, run ran, see saw, sell sold, sing sang, speak spoke, swim swam, take took, "
        "teach taught, write wrote"
    )
)
_IRREGULAR_PLURALS = {"child": "children", "fish": "fish", "knife": "knives"}
_LONG_ADJECTIVES = {"beautiful", "exciting", "expensive"}
_NEGATED = {"will": "won't", "can": "can't", "am": "am not"}
_BE = {
    Tense.PRESENT: {Agreement.FIRST: "am", Agreement.THIRD: "is", Agreement.PLURAL: "are"},
    Tense.PAST: {Agreement.FIRST: "was", Agreement.THIRD: "was", Agreement.PLURAL: "were"},
}
_MODALS = {Tense.FUTURE: "will", Tense.CAN: "can", Tense.SHOULD: "should"}


def with_article(words: str) -> str:
    """Put "a" or "an" before the words; the lexicon has no silent h and no "university"."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


@cache
def plural(noun: str) -> str:
    """Form the plural of a noun; of several words the last one changes."""
    if noun in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[noun]
    return _add_s(noun)


@cache
def comparative(adjective: str) -> str:
    """Form the comparative: taller, bigger, friendlier, more expensive."""
    if adjective in _LONG_ADJECTIVES:
        return f"more {adjective}"
    if adjective.endswith("y"):
        return adjective[:-1] + "ier"
    return _double_final(adjective, {"big"}) + "er"


@cache
def forms(verb: str) -> Forms:
    """Form all forms of a verb; of several words ("wait for") the first one changes."""
    base, *rest = verb.split(" ", 1)
    stem = base[:-1] if base.endswith("e") else _double_final(base, {"run", "swim"})
    past = _IRREGULAR_PASTS.get(base, _regular_past(base))
    third = "has" if base == "have" else _add_s(base)
    return Forms(*(" ".join([form, *rest]) for form in (base, third, past, stem + "ing")))


def verb_group(verb: str, tense: Tense, agreement: Agreement, *, bare: bool) -> VerbGroup:
    """Put the verb in its tense; `bare` omits "do", as in plain statements."""
    if verb == "be" and tense in _BE:
        return VerbGroup(_BE[tense][agreement], "")
    if verb == "be":
        return VerbGroup(_MODALS[tense], "be")
    if tense in _MODALS:
        return VerbGroup(_MODALS[tense], verb)
    if tense is Tense.PROGRESSIVE:
        return VerbGroup(_BE[Tense.PRESENT][agreement], forms(verb).ing)
    if tense is Tense.PAST:
        return VerbGroup("", forms(verb).past) if bare else VerbGroup("did", verb)
    third = agreement is Agreement.THIRD
    if bare:
        return VerbGroup("", forms(verb).third if third else verb)
    return VerbGroup("does" if third else "do", verb)


def negated(auxiliary: str) -> str:
    """Negate an auxiliary."""
    return _NEGATED.get(auxiliary, f"{auxiliary}n't")


def join(*parts: str) -> str:
    """Join words by one space; empty parts are skipped."""
    return " ".join(filter(None, parts))


def _add_s(word: str) -> str:
    if word.endswith(("s", "sh", "ch", "x", "go", "do")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _double_final(word: str, doubling: set[str]) -> str:
    return word + word[-1] if word in doubling else word


def _regular_past(base: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + "ed"
