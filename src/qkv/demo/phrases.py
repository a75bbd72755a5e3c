"""Noun phrases and people: subjects and objects in both languages."""

from dataclasses import dataclass, replace
from itertools import product

from qkv.demo.english import Agreement, forms, join, plural, with_article
from qkv.demo.lexicon import (
    AMOUNTS,
    NAME_GENDERS,
    NAMES,
    NUMERALS,
    POINTERS,
    PRONOUNS,
    RELATIVES,
    STRANGERS,
    Adverbial,
    Countability,
    Noun,
    Pronoun,
    Quality,
    RelatedPerson,
)
from qkv.demo.verbs import Verb

Combination = tuple[str, ...]
"""A relation and its content words: ("object", "吃", "苹果")."""

UNSAID = Adverbial("", "")


@dataclass(frozen=True)
class Phrase:
    """Words in both languages, their content words, and their combinations."""

    chinese: str
    english: str
    heads: tuple[str, ...] = ()
    combinations: tuple[Combination, ...] = ()
    agreement: Agreement = Agreement.THIRD
    fronted: str = ""
    """English question words, which go to the front: 什么, what."""


@dataclass(frozen=True)
class Person:
    """A person as subject, as object and as owner."""

    subject: Phrase
    object: Phrase
    owner: Phrase
    mentions: frozenset[str]
    """The people named; a clause that names one twice would need "himself"."""
    gender: str = ""
    elder: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether the speaker is meant, or somebody of the speaker's."""
        return self.subject.chinese.startswith("我")


def bare(noun: Noun, quality: Quality | None = None, *, single: bool = False) -> Phrase:
    """红色的苹果: apples in general, or one apple, which Chinese does not mark."""
    one = single and noun.kind is Countability.COUNT
    words = join(quality.english if quality else "", noun.english if one else noun.generic)
    chinese = (quality.before_noun if quality else "") + noun.chinese
    english = with_article(words) if one else words
    many = noun.kind is Countability.PLURAL or (noun.kind is Countability.COUNT and not one)
    return Phrase(chinese, english, (noun.chinese,), _described(quality, noun), _number(many))


def any_of(noun: Noun, quality: Quality | None = None) -> Phrase:
    """The object of a question or negation: a hat, any money."""
    thing = bare(noun, quality, single=True)
    if noun.kind is Countability.COUNT:
        return thing
    return replace(thing, english=f"any {thing.english}")


def counted(numeral: str, noun: Noun, quality: Quality | None = None) -> Phrase:
    """两杯茶, 一本旧书: a number, a measure word, and the English plural."""
    many = numeral != "一"
    words = _measured(noun, quality, many=many)
    return Phrase(
        numeral + noun.measure + (quality.before_noun if quality else "") + noun.chinese,
        join(NUMERALS[numeral], words) if many else with_article(words),
        (noun.chinese,),
        (("number", numeral, noun.chinese), *_described(quality, noun)),
        _number(many),
    )


def how_many(noun: Noun) -> Phrase:
    """几本书: how many books."""
    fronted = f"how many {_measured(noun, None, many=True)}"
    return Phrase(f"几{noun.measure}{noun.chinese}", "", (noun.chinese,), fronted=fronted)


def whose(noun: Noun) -> Phrase:
    """谁的书: whose book."""
    return Phrase(
        f"谁的{noun.chinese}",
        "",
        (noun.chinese,),
        (("owner", "谁", noun.chinese),),
        _number(noun.kind is Countability.PLURAL),
        f"whose {noun.english}",
    )


def amount(word: str, noun: Noun) -> Phrase:
    """很多苹果, 一些茶: no measure word; the English plural or mass noun."""
    return Phrase(
        word + noun.chinese,
        f"{AMOUNTS[word]} {noun.generic}",
        (noun.chinese,),
        (("number", word, noun.chinese),),
        _number(noun.kind is not Countability.MASS),
    )


def pointed(pointer: str, noun: Noun, *, many: bool = False) -> Phrase:
    """这本书, 那些书: this book, those books."""
    if many:
        chinese, words = f"{pointer}些{noun.chinese}", noun.generic
    else:
        chinese = pointer + noun.measure + noun.chinese
        words = _measured(noun, None, many=False)
    return Phrase(
        chinese,
        f"{POINTERS[pointer][many]} {words}",
        (noun.chinese,),
        agreement=_number(many),
    )


def this(pointer: str, thing: Phrase) -> Phrase:
    """这 before 是: this, or these where the thing is a plural in English."""
    word = POINTERS[pointer][thing.agreement is Agreement.PLURAL]
    return Phrase(pointer, word, (pointer,), agreement=thing.agreement)


def owned(owner: Phrase, noun: Noun) -> Phrase:
    """我的书, 我妈妈的书: one owned thing, unless English has no singular of it."""
    return Phrase(
        owner.chinese + noun.chinese,
        f"{owner.english} {noun.english}",
        (noun.chinese,),
        tuple(("owner", head, noun.chinese) for head in owner.heads),
        _number(noun.kind is Countability.PLURAL),
    )


def both(first: Phrase, second: Phrase) -> Phrase:
    """苹果和香蕉: two phrases joined by 和."""
    return Phrase(
        f"{first.chinese}和{second.chinese}",
        f"{first.english} and {second.english}",
        first.heads + second.heads,
        first.combinations + second.combinations,
        Agreement.PLURAL,
    )


def gerund(verb: Verb, complement: Phrase, place: Adverbial = UNSAID) -> Phrase:
    """在公园看书 after 喜欢: reading books in the park."""
    return _action(verb, forms(verb.english).ing, complement, place)


def infinitive(verb: Verb, complement: Phrase, place: Adverbial = UNSAID) -> Phrase:
    """在公园看书 after 想: to read a book in the park."""
    return _action(verb, f"to {verb.english}", complement, place)


NOTHING = Phrase("", "")
WHAT = Phrase("什么", "", ("什么",), fronted="what")
WHOM = Phrase("谁", "", ("谁",), fronted="who")
WHITHER = Phrase("哪里", "", ("哪里",), fronted="where")
WHO = Phrase("谁", "who", ("谁",))
ANYBODY = Person(WHO, WHOM, NOTHING, frozenset())


def _number(many: bool) -> Agreement:
    return Agreement.PLURAL if many else Agreement.THIRD


def _measured(noun: Noun, quality: Quality | None, *, many: bool) -> str:
    described = quality.english if quality else ""
    if noun.unit:
        unit = plural(noun.unit) if many else noun.unit
        return f"{unit} of {join(described, noun.generic)}"
    return join(described, noun.generic if many else noun.english)


def _described(quality: Quality | None, noun: Noun) -> tuple[Combination, ...]:
    return (("quality", quality.chinese, noun.chinese),) if quality else ()


def _action(verb: Verb, words: str, complement: Phrase, place: Adverbial) -> Phrase:
    pairs: tuple[Combination, ...] = tuple(
        ("object", verb.chinese, head) for head in complement.heads
    )
    if place.chinese:
        pairs += (("place", verb.chinese, place.chinese),)
    return Phrase(
        (f"在{place.chinese}" if place.chinese else "") + verb.chinese + complement.chinese,
        join(words, complement.english, place.english),
        (verb.chinese,),
        pairs + complement.combinations,
        fronted=complement.fronted,
    )


def _pronoun(pronoun: Pronoun) -> Person:
    heads = (pronoun.chinese,)
    subject = Phrase(pronoun.chinese, pronoun.subject, heads, agreement=pronoun.agreement)
    return Person(
        subject,
        replace(subject, english=pronoun.object),
        Phrase(f"{pronoun.chinese}的", pronoun.possessive, heads),
        # 我 and 我们 share 我: "we love me" is not everyday English.
        frozenset(pronoun.chinese[:1]),
        pronoun.gender,
    )


def _name(chinese: str, english: str) -> Person:
    phrase = Phrase(chinese, english, (chinese,))
    owner = Phrase(f"{chinese}的", f"{english}'s", (chinese,))
    return Person(phrase, phrase, owner, frozenset([chinese]), NAME_GENDERS[chinese])


def _relative(owner: Person, relative: RelatedPerson) -> Person:
    possessive = owner.owner
    close = relative.family and possessive.chinese in ("我的", "你的", "他的", "她的")
    chinese = (possessive.chinese[:-1] if close else possessive.chinese) + relative.chinese
    heads = (relative.chinese,)
    phrase = Phrase(chinese, f"{possessive.english} {relative.english}", heads)
    # 我的朋友 but 我朋友的书: one 的 is enough.
    owned_by = Phrase(
        f"{possessive.chinese[:-1]}{relative.chinese}的", f"{phrase.english}'s", heads
    )
    mentions = frozenset(heads) | (owner.mentions if possessive.heads[0] in NAMES else frozenset())
    return Person(phrase, phrase, owned_by, mentions, relative.gender, relative.elder)


def _stranger(pointer: str, noun: Noun, many: bool) -> Person:
    phrase = pointed(pointer, noun, many=many)
    return Person(phrase, phrase, NOTHING, frozenset(phrase.heads))


def _together(first: Person, second: Person) -> Person:
    subject = both(first.subject, second.subject)
    if first.subject.english == "I":  # 我和小明, but "Xiaoming and I"
        subject = replace(subject, english=f"{second.subject.english} and I")
    mentions = first.mentions | second.mentions
    elder = first.elder or second.elder
    return Person(subject, both(first.object, second.object), NOTHING, mentions, elder=elder)


SPEAKERS = tuple(map(_pronoun, PRONOUNS))
WE = SPEAKERS[4]
NAMED = tuple(_name(*item) for item in NAMES.items())
KIN = tuple(_relative(*pair) for pair in product(SPEAKERS, RELATIVES))
KIN_OF_NAMED = tuple(_relative(*pair) for pair in product(NAMED, RELATIVES))
PASSERS_BY = tuple(_stranger(*case) for case in product(POINTERS, STRANGERS, (False, True)))
PAIRS = tuple(
    _together(first, second)
    for first, second in [
        *product(NAMED, NAMED),
        *product(SPEAKERS[:1], NAMED + KIN[: len(RELATIVES)]),
    ]
    if first is not second
)
