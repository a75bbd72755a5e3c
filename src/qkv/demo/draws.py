"""Random choices of people, things and deeds that go together."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypedDict

from qkv.demo.clause import Clause
from qkv.demo.english import Tense
from qkv.demo.lexicon import (
    AMOUNTS,
    FUTURE_TIMES,
    NOUNS,
    NUMERAL_WEIGHTS,
    NUMERALS,
    PAST_TIMES,
    PLACES,
    POINTERS,
    THING_QUALITIES,
    Adverbial,
    Countability,
    Noun,
    Place,
    Quality,
)
from qkv.demo.phrases import (
    KIN,
    KIN_OF_NAMED,
    NAMED,
    NOTHING,
    PAIRS,
    PASSERS_BY,
    SPEAKERS,
    UNSAID,
    Person,
    Phrase,
    amount,
    bare,
    both,
    counted,
    owned,
    pointed,
)
from qkv.demo.verbs import ACTIVITIES, DEEDS, GO, GO_FAR, HELPING, PASTIMES, WAIT, Deed

QUALITIES_OF: dict[str, tuple[Quality, ...]] = {
    name: tuple(
        quality
        for quality in THING_QUALITIES
        if quality.before_noun and name in quality.nouns.split()
    )
    for name in NOUNS
}
DESTINATIONS = tuple(place for place in PLACES.values() if place.to)
EVERYDAY = tuple(
    found for found in (*DEEDS, *ACTIVITIES, *PASTIMES, *HELPING, WAIT) if found.repeats
)
NEARBY = tuple(place for place in DESTINATIONS if "plane" not in place.transports)
_NUMERALS = tuple(NUMERALS)
_SUBJECT_GROUPS = (SPEAKERS, NAMED, KIN, KIN_OF_NAMED, PASSERS_BY, PAIRS)
_SUBJECT_WEIGHTS = (45, 62, 84, 91, 96, 100)
_DEED_GROUPS = (DEEDS, ACTIVITIES, PASTIMES, (*HELPING, WAIT))
_DEED_WEIGHTS = (45, 75, 89, 100)


@dataclass(frozen=True)
class Doing:
    """A deed with its object and, optionally, its place: 在公园看书."""

    deed: Deed
    complement: Phrase = NOTHING
    place: Adverbial = UNSAID

    def by(self, person: Person, tense: Tense = Tense.PRESENT, **parts: Any) -> Clause:
        """The clause in which a person does it, with these other parts."""
        own: dict[str, Any] = {"complement": self.complement, "place": self.place}
        return Clause(person.subject, self.deed, tense, **own | parts)


def chance(rng: Random, percent: int) -> bool:
    """Return True with this probability in percent."""
    return rng.random() * 100 < percent


class Polarity(TypedDict):
    """Whether a clause denies and whether it asks."""

    negative: bool
    question: bool


def polarity(rng: Random) -> Polarity:
    """Draw whether to negate and whether to ask: a quarter of the time each."""
    roll = rng.random()
    return {"negative": roll < 0.25, "question": roll > 0.75}


def polar_subject(rng: Random) -> tuple[Person, Polarity]:
    """Draw a polarity, and a subject that suits it."""
    drawn = polarity(rng)
    return subject(rng, asked=drawn["question"]), drawn


def subject(rng: Random, *, asked: bool = False) -> Person:
    """Draw a subject; of a question, not the speaker or the speaker's relatives."""
    while True:
        (group,) = rng.choices(_SUBJECT_GROUPS, cum_weights=_SUBJECT_WEIGHTS)
        person = rng.choice(group)
        if not (asked and person.is_ours):
            return person


def somebody_else(rng: Random, than: Person) -> Person:
    """Draw a person who is not named in the given one."""
    while True:
        (group,) = rng.choices(_SUBJECT_GROUPS[:4], cum_weights=(45, 70, 92, 100))
        person = rng.choice(group)
        if not person.mentions & than.mentions:
            return person


def owner(rng: Random, than: Person) -> Phrase:
    """Draw an owner; a pronoun may refer to the subject."""
    if chance(rng, 50):
        return rng.choice(SPEAKERS).owner
    return somebody_else(rng, than).owner


def numeral(rng: Random, most: int = 6) -> str:
    """Draw a number, small ones more often."""
    (word,) = rng.choices(_NUMERALS[:most], NUMERAL_WEIGHTS[:most])
    return word


def quality(rng: Random, noun: Noun, percent: int = 30) -> Quality | None:
    """Draw an adjective that suits the noun, with this probability in percent."""
    fitting = QUALITIES_OF.get(noun.chinese, ())
    return rng.choice(fitting) if fitting and chance(rng, percent) else None


def generic(rng: Random, nouns: Sequence[Noun], *, single: bool = False) -> Phrase:
    """Draw a generic object, sometimes with an adjective, sometimes two kinds."""
    noun = rng.choice(nouns)
    if len(nouns) > 1 and not single and chance(rng, 12):
        return both(bare(noun), bare(rng.choice([other for other in nouns if other != noun])))
    return bare(noun, quality(rng, noun), single=single)


def some(rng: Random, nouns: Sequence[Noun], most: int = 6) -> Phrase:
    """Draw a number or an amount of something, sometimes of two things."""
    noun = rng.choice(nouns)
    if chance(rng, 15):
        return amount(rng.choice(tuple(AMOUNTS)), noun)
    first = counted(numeral(rng, most), noun, quality(rng, noun))
    if len(nouns) > 1 and most > 2 and chance(rng, 12):
        second = rng.choice([other for other in nouns if other != noun])
        return both(first, counted(numeral(rng, most), second))
    return first


def particular(rng: Random, nouns: Sequence[Noun], person: Person) -> Phrase:
    """Draw a definite object: this one, those, or somebody's."""
    noun = rng.choice(nouns)
    if chance(rng, 50) and noun.english != "movie":
        return owned(owner(rng, person), noun)
    many = noun.kind is Countability.COUNT and chance(rng, 30)
    return pointed(rng.choice(tuple(POINTERS)), noun, many=many)


def past(rng: Random, deed: Deed) -> Adverbial:
    """Draw a past time that suits the deed."""
    return rng.choice(PAST_TIMES[deed.span])


def future(rng: Random, deed: Deed) -> Adverbial:
    """Draw a future time that suits the deed."""
    return rng.choice(FUTURE_TIMES[deed.span])


def deed(rng: Random, *, repeating: bool = False) -> Deed:
    """Draw a deed; one that people repeat daily, if `repeating`."""
    while True:
        (group,) = rng.choices(_DEED_GROUPS, cum_weights=_DEED_WEIGHTS)
        found: Deed = rng.choice(group)
        if found.repeats or not repeating:
            return found


def doing(
    rng: Random, person: Person, *, repeating: bool = False, motion: bool = True, place: int = 30
) -> Doing:
    """Draw a verb phrase for one occasion; `place` is the percentage with a place."""
    if motion and chance(rng, 12):
        return going(rng.choice(NEARBY if repeating else DESTINATIONS))
    found = deed(rng, repeating=repeating)
    return Doing(found, complement(rng, found, person), scene(rng, found, place))


def habit(rng: Random, person: Person, *, place: int = 30) -> Doing:
    """Draw a verb phrase for a habit, with a generic object."""
    if chance(rng, 12):
        return going(rng.choice(NEARBY))
    found = deed(rng, repeating=True)
    thing = complement(rng, found, person, habit=True)
    return Doing(found, thing, scene(rng, found, place))


def going(place: Place) -> Doing:
    """去公园: going to the park."""
    found = GO if place in NEARBY else GO_FAR
    return Doing(found, Phrase(place.chinese, place.to, (place.chinese,)))


def complement(rng: Random, found: Deed, person: Person, *, habit: bool = False) -> Phrase:
    """Draw an indefinite object of the deed."""
    if found.people:
        return somebody_else(rng, person).object
    if not found.nouns:
        return NOTHING
    if not found.bare:
        return particular(rng, found.nouns, person)
    return generic(rng, found.nouns, single=found.single and not habit)


def scene(rng: Random, found: Deed, percent: int) -> Adverbial:
    """Draw a place of the deed, with this probability in percent."""
    return rng.choice(found.scenes) if found.scenes and chance(rng, percent) else UNSAID


def perhaps_particular(rng: Random, doing: Doing, person: Person) -> Phrase:
    """Return the object of the deed, sometimes made definite: a book, or that book."""
    if doing.deed.measured and chance(rng, 40):
        return particular(rng, doing.deed.measured, person)
    return doing.complement
