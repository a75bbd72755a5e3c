"""Sentence patterns with "be": identity, quality, comparison and location."""

from random import Random

from qkv.demo import draws
from qkv.demo.clause import Clause, SentencePair
from qkv.demo.english import Agreement, Tense, comparative, plural, with_article
from qkv.demo.lexicon import (
    COLOURS,
    LASTING_QUALITIES,
    NOUNS,
    NOW,
    PASSING_QUALITIES,
    PLACES,
    POINTERS,
    PROFESSIONS,
    SPOTS,
    THING_QUALITIES,
    YESTERDAY,
    Countability,
    Noun,
    Place,
    Quality,
    pick,
)
from qkv.demo.phrases import (
    KIN,
    KIN_OF_NAMED,
    NAMED,
    PAIRS,
    SPEAKERS,
    UNSAID,
    Person,
    Phrase,
    counted,
    owned,
    this,
)
from qkv.demo.verbs import BELONGINGS, IS, IS_AT, IS_LIKE

_SHOWN = pick(NOUNS, "苹果 橙子 香蕉 鸡蛋 蛋糕 信 故事 花 鸟 鱼 碗") + BELONGINGS
_PREDICATES = tuple(
    (quality, noun)
    for quality in THING_QUALITIES
    if quality.chinese not in COLOURS
    for noun in pick(NOUNS, quality.nouns)
)
_COMPARED = (*LASTING_QUALITIES, PASSING_QUALITIES[0])
_SPOTTED = tuple(
    (spot, noun) for spot, names in SPOTS.items() for noun in pick(NOUNS, names) if noun.measure
)
_WHEREABOUTS = tuple(place for place in PLACES.values() if place.chinese != "家里")
# "Just now" does not go with a country.
_ROUND_HERE = tuple(place for place in _WHEREABOUTS if "plane" not in place.transports)


def identity(rng: Random) -> SentencePair:
    """Somebody's profession or relation to somebody."""
    return _profession(rng) if draws.chance(rng, 70) else _relation(rng)


def _profession(rng: Random) -> SentencePair:
    """他是老师, 我们是学生: one of them, or many."""
    polarity = draws.polarity(rng)
    person = rng.choice(rng.choice((SPEAKERS, NAMED, KIN, KIN_OF_NAMED, PAIRS, PAIRS, PAIRS)))
    noun = rng.choice([noun for noun in PROFESSIONS if _may_be(person, noun)])
    if polarity["question"] and person.is_ours:
        return _profession(rng)
    many = person.subject.agreement is Agreement.PLURAL and person.subject.english != "you"
    english = plural(noun.english) if many else with_article(noun.english)
    return Clause(
        person.subject, IS, complement=Phrase(noun.chinese, english, (noun.chinese,)), **polarity
    ).sentence()


def _relation(rng: Random) -> SentencePair:
    """她是我姐姐, 大卫是小明的老师: a relation."""
    polarity = draws.polarity(rng)
    person = rng.choice(rng.choice((SPEAKERS[:4], NAMED)))
    other = rng.choice(rng.choice((KIN, KIN_OF_NAMED)))
    whose = other.subject.chinese[0]
    clash = person.mentions & other.mentions or whose in person.mentions
    # "My father is your father" would be odd: only he and she are said to be parents.
    unlikely = other.elder and person.subject.chinese not in ("他", "她")
    unlike = person.gender and other.gender and person.gender != other.gender
    if clash or unlike or unlikely or (polarity["question"] and person.is_ours):
        return _relation(rng)
    return Clause(person.subject, IS, complement=other.subject, **polarity).sentence()


def this_is(rng: Random) -> SentencePair:
    """这是一把雨伞, 那不是小明的书: naming and owning things."""
    polarity = draws.polarity(rng)
    pointer = rng.choice(tuple(POINTERS))
    noun = rng.choice(_SHOWN)
    if draws.chance(rng, 50) and noun.kind is Countability.COUNT:
        thing = counted("一", noun, draws.quality(rng, noun))
    else:
        noun = rng.choice(BELONGINGS)
        thing = owned(draws.owner(rng, SPEAKERS[0]), noun)
    return Clause(this(pointer, thing), IS, complement=thing, **polarity).sentence()


def person_quality(rng: Random) -> SentencePair:
    """我妈妈很高, 小明不忙: Chinese needs no verb here, English does."""
    person, polarity = draws.polar_subject(rng)
    return Clause(
        person.subject,
        IS_LIKE,
        complement=_predicate(rng.choice(LASTING_QUALITIES + PASSING_QUALITIES), **polarity),
        **polarity,
    ).sentence()


def past_quality(rng: Random) -> SentencePair:
    """她昨天很忙, 你昨天在家吗: was and were."""
    person, polarity = draws.polar_subject(rng)
    at_place = draws.chance(rng, 40)
    if at_place:
        complement = _whereabouts(rng, _ROUND_HERE)
    else:
        complement = _predicate(rng.choice(PASSING_QUALITIES), **polarity)
    return Clause(
        person.subject,
        IS_AT if at_place else IS_LIKE,
        Tense.PAST,
        complement,
        time=rng.choice(YESTERDAY),
        time_first=draws.chance(rng, 10),
        **polarity,
    ).sentence()


def thing_quality(rng: Random) -> SentencePair:
    """这本书很有意思, 你的自行车贵吗."""
    polarity = draws.polarity(rng)
    quality, noun = rng.choice(_PREDICATES)
    return Clause(
        draws.particular(rng, (noun,), SPEAKERS[0]),
        IS_LIKE,
        complement=_predicate(quality, **polarity),
        **polarity,
    ).sentence()


def comparison(rng: Random) -> SentencePair:
    """我比他高, 他没有我忙: taller than, and not as tall as."""
    question = draws.chance(rng, 20)
    person = draws.subject(rng, asked=question)
    other = draws.somebody_else(rng, person).object
    complement = _compared(
        rng.choice(_COMPARED), other, less=not question and draws.chance(rng, 30)
    )
    return Clause(person.subject, IS_LIKE, complement=complement, question=question).sentence()


def thing_comparison(rng: Random) -> SentencePair:
    """这本书比那本书贵."""
    quality, noun = rng.choice(_PREDICATES)
    first = draws.particular(rng, (noun,), SPEAKERS[0])
    second = draws.particular(rng, (noun,), SPEAKERS[0])
    if first.chinese == second.chinese or first.agreement is not second.agreement:
        return thing_comparison(rng)
    complement = _compared(quality, second, less=draws.chance(rng, 25))
    return Clause(first, IS_LIKE, complement=complement).sentence()


def location(rng: Random) -> SentencePair:
    """她现在在家, 我妈妈不在学校: 在 as the verb."""
    person, polarity = draws.polar_subject(rng)
    return Clause(
        person.subject,
        IS_AT,
        complement=_whereabouts(rng, _WHEREABOUTS),
        time=NOW if draws.chance(rng, 40) else UNSAID,
        **polarity,
    ).sentence()


def thing_location(rng: Random) -> SentencePair:
    """我的书在桌子上, 那只猫不在房间里."""
    polarity = draws.polarity(rng)
    spot, noun = rng.choice(_SPOTTED)
    return Clause(
        draws.particular(rng, (noun,), SPEAKERS[0]),
        IS_AT,
        complement=Phrase(spot.chinese, spot.english, (spot.chinese,)),
        **polarity,
    ).sentence()


def _may_be(person: Person, noun: Noun) -> bool:
    student = person.elder and noun.chinese == "学生"
    return not student and noun.chinese not in person.mentions


def _predicate(quality: Quality, negative: bool, question: bool) -> Phrase:
    # A plain 忙 sounds like half a comparison; 很 completes it, and English has "very".
    very = not (negative or question)
    chinese = f"很{quality.chinese}" if very else quality.chinese
    english = f"very {quality.english}" if very else quality.english
    return Phrase(chinese, english, (quality.chinese,))


def _compared(quality: Quality, other: Phrase, *, less: bool) -> Phrase:
    heads = (*other.heads, quality.chinese)
    if less:
        english = f"not as {quality.english} as {other.english}"
        return Phrase(f"没有{other.chinese}{quality.chinese}", english, heads)
    english = f"{comparative(quality.english)} than {other.english}"
    return Phrase(f"比{other.chinese}{quality.chinese}", english, heads)


def _whereabouts(rng: Random, places: tuple[Place, ...]) -> Phrase:
    place = rng.choice(places)
    return Phrase(place.chinese, place.at, (place.chinese,))
