"""One golden sentence or more for each phenomenon of the demo language, and its word forms."""

import pytest

from qkv.demo import lexicon, verbs
from qkv.demo import phrases as p
from qkv.demo.clause import Clause
from qkv.demo.english import Tense, comparative, forms, plural, with_article


def deed(chinese: str, noun: str = "") -> verbs.Deed:
    known = (*verbs.DEEDS, *verbs.PASTIMES, *verbs.ACTIVITIES)
    return next(each for each in known if each.chinese == chinese and noun in each.objects)


def time(chinese: str) -> lexicon.Adverbial:
    known = (*lexicon.PAST_TIMES.values(), *lexicon.FUTURE_TIMES.values(), lexicon.HABITS)
    return next(each for group in known for each in group if each.chinese == chinese)


ME, YOU, HE, SHE, WE, THEY = p.SPEAKERS
XIAOMING = p.NAMED[0]
MY_MOTHER = p.KIN[0]
PARK = lexicon.Adverbial("公园", "in the park")
HOME = lexicon.Adverbial("家里", "at home")
NOUN_OF = lexicon.NOUNS
BOOK, APPLE, TEA, CAT = (NOUN_OF[name] for name in ("书", "苹果", "茶", "猫"))
NEW, OLD = (each for each in lexicon.THING_QUALITIES if each.chinese in "新旧")
VERY_NEW = p.Phrase("很新", "very new")
WHY = lexicon.Adverbial("为什么", "", "why")
WHERE = lexicon.Adverbial("哪里", "", "where")

GOLDEN = [
    (
        Clause(
            HE.subject,
            deed("看", "书"),
            Tense.PAST,
            p.counted("两", BOOK),
            time=time("昨天"),
            place=PARK,
            done="verb",
        ),
        "他昨天在公园看了两本书",
        "He read two books in the park yesterday",
    ),
    (
        Clause(
            HE.subject,
            deed("看", "书"),
            Tense.PAST,
            p.bare(BOOK, single=True),
            time=time("昨天"),
            place=PARK,
        ),
        "他昨天在公园看书",
        "He read a book in the park yesterday",
    ),
    (
        Clause(SHE.subject, deed("喝"), complement=p.bare(TEA), time=time("每天")),
        "她每天喝茶",
        "She drinks tea every day",
    ),
    (
        Clause(ME.subject, deed("喝"), complement=p.counted("三", TEA), frequency=lexicon.OFTEN),
        "我经常喝三杯茶",
        "I often drink three cups of tea",
    ),
    (
        Clause(XIAOMING.subject, deed("吃"), complement=p.bare(APPLE), negative=True),
        "小明不吃苹果",
        "Xiaoming doesn't eat apples",
    ),
    (
        Clause(YOU.subject, deed("喝"), complement=p.bare(TEA), question=True),
        "你喝茶吗",
        "Do you drink tea",
    ),
    (
        Clause(WE.subject, verbs.GO, Tense.PAST, p.Phrase("学校", "to school"), negative=True),
        "我们没去学校",
        "We didn't go to school",
    ),
    (
        Clause(
            ME.subject,
            verbs.GO,
            Tense.FUTURE,
            p.Phrase("学校", "to school"),
            time=time("明天"),
            time_first=True,
            manner=lexicon.TRANSPORTS["bus"],
            marker="要",
        ),
        "明天我要坐公交车去学校",
        "I will go to school by bus tomorrow",
    ),
    (
        Clause(SHE.subject, deed("游泳"), Tense.FUTURE, negative=True, time=time("明天")),
        "她明天不会游泳",
        "She won't swim tomorrow",
    ),
    (
        Clause(MY_MOTHER.subject, deed("跑步"), Tense.PROGRESSIVE, place=PARK, marker="正在"),
        "我妈妈正在公园跑步",
        "My mother is running in the park",
    ),
    (
        Clause(THEY.subject, deed("做饭"), Tense.PROGRESSIVE, question=True),
        "他们在做饭吗",
        "Are they cooking",
    ),
    (
        Clause(YOU.subject, deed("唱歌"), Tense.CAN, place=PARK, negative=True),
        "你不可以在公园唱歌",
        "You can't sing in the park",
    ),
    (
        Clause(
            HE.subject,
            verbs.WANT,
            complement=p.infinitive(deed("买", "书"), p.counted("一", BOOK, OLD)),
        ),
        "他想买一本旧书",
        "He wants to buy an old book",
    ),
    (
        Clause(
            SHE.subject,
            verbs.LIKE,
            complement=p.gerund(deed("看", "书"), p.bare(BOOK, NEW), HOME),
            negative=True,
        ),
        "她不喜欢在家里看新书",
        "She doesn't like reading new books at home",
    ),
    (
        Clause(
            ME.subject,
            verbs.LIKE,
            complement=p.both(p.bare(CAT), p.bare(NOUN_OF["狗"])),
            negative=True,
        ),
        "我不喜欢猫和狗",
        "I don't like cats or dogs",
    ),
    (
        Clause(HE.subject, verbs.HAVE, complement=p.counted("两", NOUN_OF["孩子"])),
        "他有两个孩子",
        "He has two children",
    ),
    (
        Clause(ME.subject, verbs.HAVE, complement=p.any_of(NOUN_OF["雨伞"]), negative=True),
        "我没有雨伞",
        "I don't have an umbrella",
    ),
    (
        Clause(p.owned(MY_MOTHER.owner, BOOK), verbs.IS_LIKE, complement=VERY_NEW),
        "我妈妈的书很新",
        "My mother's book is very new",
    ),
    (
        Clause(p.pointed("那", CAT, many=True), verbs.IS_AT, complement=p.WHITHER),
        "那些猫在哪里",
        "Where are those cats",
    ),
    (
        Clause(YOU.subject, deed("吃"), Tense.PAST, p.WHAT, time=time("昨天"), done="verb"),
        "你昨天吃了什么",
        "What did you eat yesterday",
    ),
    (
        Clause(YOU.subject, deed("学习"), place=WHERE),
        "你在哪里学习",
        "Where do you study",
    ),
    (
        Clause(
            XIAOMING.subject, deed("工作"), Tense.PAST, negative=True, reason=WHY, time=time("昨天")
        ),
        "小明昨天为什么没工作",
        "Why didn't Xiaoming work yesterday",
    ),
    (
        Clause(SHE.subject, deed("喝"), Tense.PAST, p.how_many(TEA), done="verb"),
        "她喝了几杯茶",
        "How many cups of tea did she drink",
    ),
    (
        Clause(p.PAIRS[-1].subject, verbs.LOVE, complement=YOU.object),
        "我和我的同学爱你",
        "My classmate and I love you",
    ),
]


@pytest.mark.parametrize(("clause", "chinese", "english"), GOLDEN, ids=[each[1] for each in GOLDEN])
def test_golden_sentences(clause: Clause, chinese: str, english: str) -> None:
    sentence = clause.sentence()
    assert (sentence.chinese, sentence.english) == (chinese, english)


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("eat", "eat eats ate eating"),
        ("study", "study studies studied studying"),
        ("swim", "swim swims swam swimming"),
        ("write", "write writes wrote writing"),
        ("play", "play plays played playing"),
        ("go", "go goes went going"),
        ("have", "have has had having"),
        ("teach", "teach teaches taught teaching"),
    ],
)
def test_verb_forms(verb: str, expected: str) -> None:
    assert forms(verb) == tuple(expected.split())


def test_other_word_forms() -> None:
    assert forms("wait for").ing == "waiting for"
    nouns = ("knife", "box", "story", "child", "fish", "older brother")
    assert [plural(noun) for noun in nouns] == [
        "knives",
        "boxes",
        "stories",
        "children",
        "fish",
        "older brothers",
    ]
    adjectives = ("tall", "big", "busy", "exciting")
    assert [comparative(each) for each in adjectives] == [
        "taller",
        "bigger",
        "busier",
        "more exciting",
    ]
    assert [with_article(noun) for noun in ("umbrella", "book")] == ["an umbrella", "a book"]
