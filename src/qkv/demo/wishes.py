"""Sentence patterns about what people like or want to do, and what they can or should do."""

from random import Random

from qkv.demo import draws
from qkv.demo.clause import Clause, SentencePair
from qkv.demo.english import Tense
from qkv.demo.phrases import UNSAID, WE, gerund, infinitive
from qkv.demo.verbs import LIKE, LOVE, TRAVEL, WANT


def liking(rng: Random) -> SentencePair:
    """我爱学习, 她不喜欢在家里做饭: -ing after like and love."""
    person, polarity = draws.polar_subject(rng)
    doing = draws.Doing(TRAVEL) if draws.chance(rng, 5) else draws.habit(rng, person)
    return Clause(
        person.subject,
        rng.choice((LOVE, LIKE)),
        complement=gerund(doing.deed, doing.complement, doing.place),
        **polarity,
    ).sentence()


def wanting(rng: Random) -> SentencePair:
    """他想买两本书, 你想去北京吗: want to."""
    person, polarity = draws.polar_subject(rng)
    doing = draws.doing(rng, person)
    complement = doing.complement
    if doing.deed.measured and not polarity["negative"] and draws.chance(rng, 40):
        complement = draws.some(rng, doing.deed.measured, min(3, doing.deed.most))
    return Clause(
        person.subject,
        WANT,
        complement=infinitive(doing.deed, complement, doing.place),
        time=draws.future(rng, doing.deed) if draws.chance(rng, 30) else UNSAID,
        **polarity,
    ).sentence()


def modal(rng: Random) -> SentencePair:
    """你不可以在教室唱歌, 他应该休息: can and should."""
    polarity = draws.polarity(rng)
    tense = rng.choice((Tense.CAN, Tense.SHOULD))
    # "Can we" and "should we" are the only questions that this grammar lets us ask of ourselves.
    person = WE if polarity["question"] and draws.chance(rng, 20) else draws.subject(rng)
    doing = draws.doing(rng, person, place=40)
    return doing.by(
        person,
        tense,
        complement=draws.perhaps_particular(rng, doing, person),
        time=draws.future(rng, doing.deed) if draws.chance(rng, 20) else UNSAID,
        **polarity,
    ).sentence()
