"""Sentence patterns about going somewhere: when, how and why."""

from random import Random
from typing import NamedTuple

from qkv.demo import draws
from qkv.demo.clause import Clause, SentencePair
from qkv.demo.english import Tense, join
from qkv.demo.lexicon import HABITS, OCCASIONS, TRANSPORTS, Adverbial, Place
from qkv.demo.phrases import Phrase, infinitive
from qkv.demo.verbs import ACTIVITIES, DEEDS, GO, GO_BACK, PASTIMES, Deed


def _worth_a_walk(deed: Deed, place: Place) -> bool:
    """Whether people go to the place for the deed: to a restaurant to eat, but not to school."""
    if deed.chinese in ("吃", "喝"):
        return place.chinese == "饭馆"
    return place.chinese in deed.places.split() and deed.english not in ("sell", "watch")


_OUTINGS = tuple(
    (deed, place)
    for deed in ACTIVITIES + PASTIMES + DEEDS
    for place in draws.DESTINATIONS
    if _worth_a_walk(deed, place)
)


def travel(rng: Random) -> SentencePair:
    """他每天坐公交车去学校: the means of transport, before the verb and after it."""
    question = draws.chance(rng, 25)
    person = draws.subject(rng, asked=question)
    place = rng.choice(draws.DESTINATIONS)
    doing, done = draws.going(place), "verb"
    if doing.deed is GO and draws.chance(rng, 20):
        doing, done = draws.Doing(GO_BACK, Phrase("家", "home", ("家",))), "end"
    journey = _journey(rng, doing.deed)
    return doing.by(
        person,
        journey.tense,
        question=question,
        time=journey.time,
        time_first=not question and draws.chance(rng, 15),
        manner=TRANSPORTS[rng.choice(place.transports.split())],
        marker="" if question else journey.marker,
        done=done if journey.tense is Tense.PAST else "",
    ).sentence()


def purpose(rng: Random) -> SentencePair:
    """她昨天去超市买苹果了: one verb after another, "to" between them."""
    person = draws.subject(rng)
    deed, place = rng.choice(_OUTINGS)
    going = draws.going(place)
    journey = _journey(rng, going.deed)
    habit = journey.tense is Tense.PRESENT
    if habit and not deed.repeats:
        return purpose(rng)
    action = infinitive(deed, draws.complement(rng, deed, person, habit=habit))
    return Clause(
        person.subject,
        going.deed,
        journey.tense,
        Phrase(
            place.chinese + action.chinese,
            join(place.to, action.english),
            (place.chinese,),
            (*action.combinations, ("place", deed.chinese, place.chinese)),
        ),
        time=journey.time,
        marker=journey.marker,
        done="end" if journey.tense is Tense.PAST else "",
    ).sentence()


class _Journey(NamedTuple):
    tense: Tense
    time: Adverbial
    marker: str = ""


def _journey(rng: Random, deed: Deed) -> _Journey:
    roll = rng.random()
    if roll < 0.4 and deed.repeats:
        return _Journey(Tense.PRESENT, rng.choice(HABITS + OCCASIONS))
    if roll < 0.7:
        return _Journey(Tense.PAST, draws.past(rng, deed))
    return _Journey(Tense.FUTURE, draws.future(rng, deed), rng.choice(("会", "要")))
