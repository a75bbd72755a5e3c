"""Sentence patterns about actions: habits, past, future and progressive."""

from dataclasses import replace
from random import Random

from qkv.demo import draws
from qkv.demo.clause import Clause, SentencePair
from qkv.demo.english import Tense
from qkv.demo.lexicon import FREQUENCIES, HABITS, NOW, OCCASIONS, OFTEN, Adverbial
from qkv.demo.phrases import NAMED, SPEAKERS, UNSAID, bare, counted
from qkv.demo.verbs import ACTIVITIES, DEEDS, HELPING, PASTIMES, SEE, Deed

_UNCOUNTED = ACTIVITIES + PASTIMES
# 工作了 and 旅行了 need a place or a duration.
_DONE = (*(deed for deed in _UNCOUNTED if deed.chinese not in "工作旅行"), SEE, *HELPING)


def habit(rng: Random) -> SentencePair:
    """他每天在家里喝两杯茶: the third person's -s, and the time at the end."""
    return _habit(rng, rng.choice(HABITS + OCCASIONS), UNSAID)


def frequency(rng: Random) -> SentencePair:
    """她周末经常看书: English leaves "often" where it is and moves the weekend."""
    time = rng.choice(OCCASIONS) if draws.chance(rng, 35) else UNSAID
    return _habit(rng, time, rng.choice(FREQUENCIES))


def contrast(rng: Random) -> SentencePair:
    """我喝茶，他喝咖啡: two subjects, and each verb agrees with its own."""
    first = rng.choice((*SPEAKERS, *NAMED))
    second = draws.somebody_else(rng, first)
    group = rng.choice((PASTIMES[:2], DEEDS, DEEDS, DEEDS))
    deed = rng.choice([deed for deed in group if deed.repeats and len(deed.nouns) > 1])
    one, other = (bare(noun) for noun in rng.sample(deed.nouns, 2))
    return Clause(first.subject, deed, complement=one).with_another(
        Clause(second.subject, deed, complement=other)
    )


def habit_negative(rng: Random) -> SentencePair:
    """我早上不喝咖啡: don't and doesn't."""
    person = draws.subject(rng)
    doing = draws.habit(rng, person, place=20)
    return doing.by(
        person, negative=True, time=rng.choice(OCCASIONS) if draws.chance(rng, 65) else UNSAID
    ).sentence()


def habit_question(rng: Random) -> SentencePair:
    """你每天喝咖啡吗: do and does come first."""
    person = draws.subject(rng, asked=True)
    doing = draws.habit(rng, person, place=20)
    often = draws.chance(rng, 30)
    return doing.by(
        person,
        question=True,
        time=UNSAID if often else rng.choice(HABITS + OCCASIONS),
        frequency=OFTEN if often else UNSAID,
    ).sentence()


def past_completed(rng: Random) -> SentencePair:
    """他昨天在公园看了两本书: 了 alone makes a past; 昨天 moves to the end."""
    person = draws.subject(rng)
    deed = rng.choice([deed for deed in DEEDS if deed.measured])
    if draws.chance(rng, 70):
        thing = draws.some(rng, deed.measured, deed.most)
    else:
        thing = draws.particular(rng, deed.measured, person)
    timed = draws.chance(rng, 55)
    return Clause(
        person.subject,
        deed,
        Tense.PAST,
        thing,
        time=draws.past(rng, deed) if timed else UNSAID,
        time_first=draws.chance(rng, 20),
        place=draws.scene(rng, deed, 30 if timed else 15),
        done="verb",
    ).sentence()


def past_scene(rng: Random) -> SentencePair:
    """他昨天在公园看书: the time word alone makes the past."""
    person = draws.subject(rng)
    doing = draws.doing(rng, person, motion=False, place=100)
    if not doing.place.chinese:  # swimming and borrowing have no place
        return past_scene(rng)
    return doing.by(
        person, Tense.PAST, time=draws.past(rng, doing.deed), time_first=draws.chance(rng, 20)
    ).sentence()


def past_activity(rng: Random) -> SentencePair:
    """他昨天游泳了, 他去年去了北京, 她刚才帮助了我: a past action without a counted object."""
    person = draws.subject(rng)
    if draws.chance(rng, 20):
        doing = draws.going(rng.choice(draws.DESTINATIONS))
    else:
        deed = rng.choice(_DONE)
        place = draws.scene(rng, deed, 40) if deed.people else UNSAID
        doing = draws.Doing(deed, draws.complement(rng, deed, person), place)
    return doing.by(
        person,
        Tense.PAST,
        time=draws.past(rng, doing.deed),
        time_first=draws.chance(rng, 20),
        done=_done(doing.deed),
    ).sentence()


def past_negative(rng: Random) -> SentencePair:
    """他昨天没看书: 没 and no 了."""
    person = draws.subject(rng)
    doing = draws.doing(rng, person, place=20)
    return doing.by(
        person,
        Tense.PAST,
        complement=draws.perhaps_particular(rng, doing, person),
        negative=True,
        time=draws.past(rng, doing.deed),
        time_first=draws.chance(rng, 15),
    ).sentence()


def past_question(rng: Random) -> SentencePair:
    """你昨天买了花吗, 你刚才跑步了吗: did."""
    person = draws.subject(rng, asked=True)
    doing = draws.doing(rng, person, place=0)
    uncounted = doing.deed in _UNCOUNTED or doing.deed.people
    return doing.by(
        person,
        Tense.PAST,
        complement=draws.perhaps_particular(rng, doing, person),
        question=True,
        time=draws.past(rng, doing.deed) if uncounted or draws.chance(rng, 75) else UNSAID,
        done="end" if uncounted else "verb",
    ).sentence()


def future(rng: Random) -> SentencePair:
    """我明天会去学校, 她下周要买两本书: will."""
    person = draws.subject(rng)
    doing = draws.doing(rng, person)
    if doing.deed.measured and draws.chance(rng, 50):
        thing = draws.some(rng, doing.deed.measured, doing.deed.most)
        doing = replace(doing, complement=thing)
    return doing.by(
        person,
        Tense.FUTURE,
        time=draws.future(rng, doing.deed),
        time_first=draws.chance(rng, 20),
        marker=rng.choice(("会", "要")),
    ).sentence()


def future_polar(rng: Random) -> SentencePair:
    """他明天不会工作, 你明天会去学校吗: won't, and will in front."""
    question = draws.chance(rng, 50)
    person = draws.subject(rng, asked=question)
    doing = draws.doing(rng, person, place=20)
    return doing.by(
        person,
        Tense.FUTURE,
        negative=not question,
        question=question,
        time=draws.future(rng, doing.deed),
    ).sentence()


def progressive(rng: Random) -> SentencePair:
    """他正在公园跑步, 我妈妈在看一本书: be with -ing."""
    person = draws.subject(rng)
    doing = draws.doing(rng, person, repeating=True, motion=False)
    if (doing.deed.single or doing.deed.chinese in ("吃", "喝")) and draws.chance(rng, 35):
        doing = replace(doing, complement=counted("一", rng.choice(doing.deed.measured)))
    return doing.by(
        person,
        Tense.PROGRESSIVE,
        time=NOW if draws.chance(rng, 25) else UNSAID,
        # 在公园跑步 alone might also be a habit.
        marker="正在" if doing.place.chinese else rng.choice(("正在", "在")),
    ).sentence()


def progressive_polar(rng: Random) -> SentencePair:
    """他没在看书, 你在看书吗: isn't, and are in front."""
    question = draws.chance(rng, 50)
    person = draws.subject(rng, asked=question)
    doing = draws.doing(rng, person, repeating=True, motion=False, place=0)
    return doing.by(
        person,
        Tense.PROGRESSIVE,
        complement=draws.perhaps_particular(rng, doing, person),
        negative=not question,
        question=question,
        time=NOW if draws.chance(rng, 30) else UNSAID,
    ).sentence()


def _habit(rng: Random, time: Adverbial, frequency: Adverbial) -> SentencePair:
    person = draws.subject(rng)
    doing = draws.habit(rng, person)
    if doing.deed.measured and draws.chance(rng, 25):
        thing = draws.some(rng, doing.deed.measured, most=min(3, doing.deed.most))
        doing = replace(doing, complement=thing)
    return doing.by(
        person,
        time=time,
        # 每天早上 may open a sentence; a bare 每天 there sounds like a slogan.
        time_first=time != HABITS[0] and draws.chance(rng, 20),
        frequency=frequency,
    ).sentence()


def _done(deed: Deed) -> str:
    """去了学校, but 跑步了."""
    return "end" if deed in _UNCOUNTED else "verb"
