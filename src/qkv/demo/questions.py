"""Sentence patterns with a question word, which only English moves to the front."""

from random import Random

from qkv.demo import draws
from qkv.demo.clause import Clause, SentencePair
from qkv.demo.english import Tense
from qkv.demo.lexicon import HABITS, NOW, OCCASIONS, POINTERS, YESTERDAY, Adverbial
from qkv.demo.phrases import (
    ANYBODY,
    UNSAID,
    WHAT,
    WHITHER,
    WHO,
    WHOM,
    Phrase,
    bare,
    gerund,
    how_many,
    infinitive,
    this,
    whose,
)
from qkv.demo.verbs import (
    AMBIGUOUS,
    BELIEVE,
    BELONGINGS,
    DEEDS,
    GO,
    HAVE,
    HELPING,
    IS,
    IS_AT,
    KNOW,
    LIKE,
    LIKED,
    LOVE,
    MISS,
    NEED,
    PASTIMES,
    WAIT,
    WANT,
    Deed,
)

_FOR_PEOPLE = (LIKE, LOVE, KNOW, MISS, BELIEVE)
# A verb whose meaning its object decides cannot ask for that object; 拍 and 洗 hardly do.
_ASKABLE = tuple(
    deed for deed in DEEDS + PASTIMES[:2] if deed.chinese not in (AMBIGUOUS, "拍", "洗")
)
_WHERE = Adverbial("哪里", "", "where")
_WHY = Adverbial("为什么", "", "why")


def who(rng: Random) -> SentencePair:
    """A question with "who", which is in front in both languages."""
    return _who_does(rng) if draws.chance(rng, 60) else _who_has(rng)


def _who_does(rng: Random) -> SentencePair:
    """谁正在公园唱歌, 谁想喝咖啡."""
    if draws.chance(rng, 20):
        doing = draws.habit(rng, ANYBODY)
        liked = gerund(doing.deed, doing.complement, doing.place)
        return Clause(WHO, rng.choice((LIKE, LOVE)), complement=liked).sentence()
    if draws.chance(rng, 30):
        doing = draws.habit(rng, ANYBODY)
        time = rng.choice(HABITS + OCCASIONS)
        return doing.by(ANYBODY, time=time).sentence()
    doing = draws.doing(rng, ANYBODY, repeating=True, motion=False)
    if draws.chance(rng, 50):
        wish = infinitive(doing.deed, doing.complement, doing.place)
        return Clause(WHO, WANT, complement=wish).sentence()
    return doing.by(
        ANYBODY, Tense.PROGRESSIVE, marker="正在" if doing.place.chinese else "在"
    ).sentence()


def who_did(rng: Random) -> SentencePair:
    """谁昨天买了三本书."""
    deed = rng.choice(DEEDS)
    return Clause(
        WHO,
        deed,
        Tense.PAST,
        draws.some(rng, deed.measured, deed.most),
        time=draws.past(rng, deed) if draws.chance(rng, 60) else UNSAID,
        done="verb",
    ).sentence()


def _who_has(rng: Random) -> SentencePair:
    """谁有雨伞, 谁认识小明, 谁需要这本书, 这是谁的书."""
    roll = rng.random()
    noun = rng.choice(BELONGINGS)
    if roll < 0.12:
        thing = whose(noun)
        return Clause(this(rng.choice(tuple(POINTERS)), thing), IS, complement=thing).sentence()
    if roll < 0.3:
        thing = bare(noun, draws.quality(rng, noun, 50), single=True)
        return Clause(WHO, HAVE, complement=thing).sentence()
    if roll < 0.6:
        known = draws.somebody_else(rng, ANYBODY).object
        return Clause(WHO, rng.choice(_FOR_PEOPLE), complement=known).sentence()
    wanted = draws.particular(rng, BELONGINGS, ANYBODY)
    return Clause(WHO, rng.choice((LIKE, NEED)), complement=wanted).sentence()


def what(rng: Random) -> SentencePair:
    """他昨天买了什么, 你想喝什么: an object asked for."""
    person = draws.subject(rng, asked=True).subject
    deed = rng.choice(_ASKABLE)
    if draws.chance(rng, 25):
        return Clause(person, WANT, complement=infinitive(deed, WHAT)).sentence()
    return _asked_object(rng, person, deed, WHAT)


def whom(rng: Random) -> SentencePair:
    """你在等谁, 他喜欢谁: a person asked for."""
    person = draws.subject(rng, asked=True).subject
    if draws.chance(rng, 40):
        return Clause(person, rng.choice(_FOR_PEOPLE), complement=WHOM).sentence()
    if draws.chance(rng, 30):
        return Clause(person, WAIT, Tense.PROGRESSIVE, WHOM, time=_perhaps_now(rng)).sentence()
    return _asked_object(rng, person, rng.choice(HELPING), WHOM)


def where(rng: Random) -> SentencePair:
    """你昨天在哪里看书: a place asked for, from the middle of the sentence to the front."""
    person = draws.subject(rng, asked=True)
    deed = rng.choice([found for found in draws.EVERYDAY if found.scenes])
    tense, time = _when(rng, deed)
    return Clause(
        person.subject,
        deed,
        tense,
        draws.complement(rng, deed, person, habit=tense is Tense.PRESENT),
        time=time,
        place=_WHERE,
    ).sentence()


def where_to(rng: Random) -> SentencePair:
    """她明天会去哪里, 我的手机在哪里: where somebody goes, where something is."""
    roll = rng.random()
    if roll < 0.5:
        thing = draws.particular(rng, BELONGINGS, ANYBODY)
        return Clause(thing, IS_AT, complement=WHITHER).sentence()
    person = draws.subject(rng, asked=True).subject
    if roll < 0.65:
        tense, time = rng.choice(((Tense.PRESENT, NOW), (Tense.PAST, rng.choice(YESTERDAY))))
        return Clause(person, IS_AT, tense, WHITHER, time=time).sentence()
    if roll < 0.7:
        return Clause(person, WANT, complement=infinitive(GO, WHITHER)).sentence()
    tense, time = _when(rng, GO)
    done = "verb" if tense is Tense.PAST else ""
    return Clause(person, GO, tense, WHITHER, time=time, done=done).sentence()


def why(rng: Random) -> SentencePair:
    """他昨天为什么没去学校: why, and did or didn't after it."""
    person = draws.subject(rng, asked=True)
    doing = draws.doing(rng, person, place=25)
    return doing.by(
        person,
        Tense.PAST,
        negative=draws.chance(rng, 60),
        time=draws.past(rng, doing.deed),
        reason=_WHY,
    ).sentence()


def why_feel(rng: Random) -> SentencePair:
    """你为什么喜欢猫, 他为什么不想去北京: why, and do or does after it."""
    person = draws.subject(rng, asked=True)
    verb = rng.choice((LIKE, LOVE, WANT))
    choose = draws.doing if verb is WANT else draws.habit
    doing = choose(rng, person, place=15)
    action = (doing.deed, doing.complement, doing.place)
    if verb is WANT:
        complement = infinitive(*action)
    elif draws.chance(rng, 40):
        complement = gerund(*action)
    elif draws.chance(rng, 50):
        complement = draws.generic(rng, LIKED)
    else:
        complement = draws.somebody_else(rng, person).object
    negative = draws.chance(rng, 35)
    return Clause(
        person.subject, verb, complement=complement, negative=negative, reason=_WHY
    ).sentence()


def number(rng: Random) -> SentencePair:
    """你有几本书, 他昨天喝了几杯茶: how many."""
    person = draws.subject(rng, asked=True).subject
    if draws.chance(rng, 45):
        return Clause(person, HAVE, complement=how_many(rng.choice(BELONGINGS))).sentence()
    deed = rng.choice(DEEDS)
    return Clause(
        person,
        deed,
        Tense.PAST,
        how_many(rng.choice(deed.measured)),
        time=draws.past(rng, deed) if draws.chance(rng, 60) else UNSAID,
        done="verb",
    ).sentence()


def _perhaps_now(rng: Random) -> Adverbial:
    return NOW if draws.chance(rng, 30) else UNSAID


def _when(rng: Random, deed: Deed) -> tuple[Tense, Adverbial]:
    tense = rng.choice((Tense.PRESENT, Tense.PAST, Tense.FUTURE))
    if tense is Tense.PRESENT:
        return tense, rng.choice(OCCASIONS)
    return tense, draws.past(rng, deed) if tense is Tense.PAST else draws.future(rng, deed)


def _asked_object(rng: Random, person: Phrase, deed: Deed, asked: Phrase) -> SentencePair:
    if deed.repeats and draws.chance(rng, 25):
        return Clause(person, deed, Tense.PROGRESSIVE, asked, time=_perhaps_now(rng)).sentence()
    tense, time = _when(rng, deed)
    if tense is Tense.PRESENT and not deed.repeats:
        return _asked_object(rng, person, deed, asked)
    done = "verb" if tense is Tense.PAST else ""
    return Clause(person, deed, tense, asked, time=time, done=done).sentence()
