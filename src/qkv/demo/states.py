"""Sentence patterns about giving and about states: feelings, possession and existence."""

from dataclasses import replace
from random import Random

from qkv.demo import draws
from qkv.demo.clause import Clause, SentencePair
from qkv.demo.english import Tense, join
from qkv.demo.lexicon import (
    AMOUNTS,
    NOUNS,
    SIBLINGS,
    SPOTS,
    TOMORROW,
    YESTERDAY,
    Adverbial,
    Noun,
    pick,
)
from qkv.demo.phrases import UNSAID, Phrase, amount, any_of, bare, both, counted
from qkv.demo.verbs import (
    BELIEVE,
    BELONGINGS,
    DEEDS,
    GIVE,
    HAVE,
    KNOW,
    LIKE,
    LIKED,
    LOVE,
    MISS,
    NEED,
    THERE_IS,
    THERE_IS_NOT,
    Verb,
)

_MONEY_AND_TIME = pick(NOUNS, "钱 时间")
_PLENTY = pick(NOUNS, "钱 时间 朋友 书 衣服 照片")
_FAMILY = (*SIBLINGS, NOUNS["孩子"])
_SPOTS = tuple((spot, pick(NOUNS, names)) for spot, names in SPOTS.items())
_GIFTS = tuple(
    noun for deed in DEEDS if deed.chinese in ("买", "吃", "喝") for noun in deed.measured
)


def giving(rng: Random) -> SentencePair:
    """他给了我一本书: two objects."""
    person = draws.subject(rng)
    other = draws.somebody_else(rng, person)
    thing = draws.some(rng, _GIFTS, 3)
    recipient = other.object
    later = draws.chance(rng, 35)
    near = rng.choice(TOMORROW if later else YESTERDAY)
    return Clause(
        person.subject,
        GIVE,
        Tense.FUTURE if later else Tense.PAST,
        Phrase(
            recipient.chinese + thing.chinese,
            join(recipient.english, thing.english),
            recipient.heads + thing.heads,
            thing.combinations,
        ),
        time=near if later or draws.chance(rng, 50) else UNSAID,
        done="" if later else "verb",
    ).sentence()


def feeling_for_people(rng: Random) -> SentencePair:
    """我爱你, 他不认识小明, 你想念你妈妈吗."""
    person, polarity = draws.polar_subject(rng)
    return Clause(
        person.subject,
        rng.choice((LOVE, LIKE, KNOW, MISS, BELIEVE)),
        complement=draws.somebody_else(rng, person).object,
        **polarity,
    ).sentence()


def feeling_for_things(rng: Random) -> SentencePair:
    """她喜欢猫: a kind of thing, which English puts in the plural."""
    person, polarity = draws.polar_subject(rng)
    return Clause(
        person.subject, rng.choice((LOVE, LIKE)), complement=draws.generic(rng, LIKED), **polarity
    ).sentence()


def attitude(rng: Random) -> SentencePair:
    """我喜欢这本书, 他需要一把雨伞: particular things, or a number of them."""
    person, polarity = draws.polar_subject(rng)
    verb = rng.choice((LIKE, NEED))
    if verb is NEED and not polarity["negative"] and draws.chance(rng, 60):
        thing = draws.some(rng, BELONGINGS, 3)
    else:
        thing = draws.particular(rng, BELONGINGS, person)
    return Clause(person.subject, verb, complement=thing, **polarity).sentence()


def having(rng: Random) -> SentencePair:
    """我有三本书, 他妈妈有很多钱: have and has."""
    person = draws.subject(rng)
    if draws.chance(rng, 25):
        thing = amount("很多", rng.choice(_PLENTY))
    else:
        noun = rng.choice(BELONGINGS)
        thing = counted(draws.numeral(rng, 4), noun, draws.quality(rng, noun, 50))
    return Clause(person.subject, HAVE, complement=thing).sentence()


def having_family(rng: Random) -> SentencePair:
    """她有两个哥哥和一个妹妹."""
    person = draws.subject(rng)
    first, second = rng.sample([kin for kin in _FAMILY if kin.chinese not in person.mentions], 2)
    thing = counted(draws.numeral(rng, 3), first)
    if draws.chance(rng, 50):
        thing = both(thing, counted(draws.numeral(rng, 3), second))
    return Clause(person.subject, HAVE, complement=thing).sentence()


def having_polar(rng: Random) -> SentencePair:
    """我没有猫, 你有雨伞吗: English asks for one of them."""
    question = draws.chance(rng, 50)
    person = draws.subject(rng, asked=question)
    noun = rng.choice(BELONGINGS + _FAMILY + 2 * _MONEY_AND_TIME)
    return Clause(
        person.subject,
        HAVE,
        complement=any_of(noun, draws.quality(rng, noun)),
        negative=not question,
        question=question,
    ).sentence()


def existing(rng: Random) -> SentencePair:
    """桌子上有两本书: there is or there are, by the number."""
    spot, nouns = rng.choice(_SPOTS)
    noun = rng.choice(nouns)
    if draws.chance(rng, 45):
        return _none_or_any(rng, spot, noun)
    if noun.measure and draws.chance(rng, 80):
        thing = counted(draws.numeral(rng), noun, draws.quality(rng, noun))
    else:
        thing = amount(rng.choice(tuple(AMOUNTS)), noun)
    return _there(THERE_IS, thing, spot)


def _none_or_any(rng: Random, spot: Adverbial, noun: Noun) -> SentencePair:
    """桌子上没有书, 桌子上有书吗: there are no books; is there a book?"""
    quality = draws.quality(rng, noun)
    if draws.chance(rng, 50):
        return _there(THERE_IS, any_of(noun, quality), spot, question=True)
    thing = bare(noun, quality)
    return _there(THERE_IS_NOT, replace(thing, english=f"no {thing.english}"), spot)


def _there(verb: Verb, thing: Phrase, spot: Adverbial, *, question: bool = False) -> SentencePair:
    there = Phrase(spot.chinese, "there", (spot.chinese,), agreement=thing.agreement)
    where = Adverbial("", spot.english)
    return Clause(there, verb, complement=thing, place=where, question=question).sentence()
