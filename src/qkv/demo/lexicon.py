"""The lexicon of the demo grammar: words in both languages, and what they combine with."""

from dataclasses import dataclass
from enum import Enum

from qkv.demo.english import Agreement, pairs, plural


class Countability(Enum):
    """How English counts a noun."""

    COUNT = "an apple, apples"
    MASS = "tea"
    PLURAL = "shoes"


@dataclass(frozen=True)
class Noun:
    """A thing, with its measure word: 一杯茶 is Noun("茶", "tea", "杯", unit="cup")."""

    chinese: str
    english: str
    measure: str = ""
    unit: str = ""
    kind: Countability = Countability.COUNT

    @property
    def generic(self) -> str:
        """The generic form: apples, tea, shoes."""
        return plural(self.english) if self.kind is Countability.COUNT else self.english


@dataclass(frozen=True)
class Quality:
    """An adjective and the nouns that it suits: 红色的苹果 before a noun, 很高 after a subject."""

    chinese: str
    english: str
    before_noun: str = ""
    nouns: str = ""


@dataclass(frozen=True)
class Adverbial:
    """A phrase of time, place or manner, which the two languages put at different ends."""

    chinese: str
    english: str
    fronted: str = ""
    """Its English question word, which goes to the front: 哪里, where."""


@dataclass(frozen=True)
class Place:
    """A place to be at and, unless `to` is empty, to go to by some of the means of transport."""

    chinese: str
    at: str
    to: str = ""
    transports: str = ""


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun in its English cases."""

    chinese: str
    subject: str
    object: str
    possessive: str
    agreement: Agreement
    gender: str = ""


@dataclass(frozen=True)
class RelatedPerson:
    """A person by relation: family needs no 的 after 我, friends and teachers do."""

    chinese: str
    english: str
    gender: str = ""
    elder: bool = False
    family: bool = True


def pick(table: dict[str, Noun], names: str) -> tuple[Noun, ...]:
    """Look up nouns by their names, separated by spaces."""
    return tuple(table[name] for name in names.split())


def _nouns(
    words: str, measure: str = "", kind: Countability = Countability.COUNT
) -> tuple[Noun, ...]:
    """Nouns with the same measure word, perhaps with its English unit: "杯 cup"."""
    word, _, unit = measure.partition(" ")
    return tuple(Noun(chinese, english, word, unit, kind) for chinese, english in pairs(words))


def _adverbials(words: str) -> tuple[Adverbial, ...]:
    return tuple(Adverbial(chinese, english) for chinese, english in pairs(words))


PRONOUNS = (
    Pronoun("我", "I", "me", "my", Agreement.FIRST),
    Pronoun("你", "you", "you", "your", Agreement.PLURAL),
    Pronoun("他", "he", "him", "his", Agreement.THIRD, "male"),
    Pronoun("她", "she", "her", "her", Agreement.THIRD, "female"),
    Pronoun("我们", "we", "us", "our", Agreement.PLURAL),
    Pronoun("他们", "they", "them", "their", Agreement.PLURAL),
)
NAMES = {"小明": "Xiaoming", "小红": "Xiaohong", "小华": "Xiaohua", "大卫": "David", "安娜": "Anna"}
NAME_GENDERS = {"小明": "male", "小红": "female", "小华": "", "大卫": "male", "安娜": "female"}

RELATIVES = (
    RelatedPerson("妈妈", "mother", "female", elder=True),
    RelatedPerson("爸爸", "father", "male", elder=True),
    RelatedPerson("爷爷", "grandfather", "male", elder=True),
    RelatedPerson("奶奶", "grandmother", "female", elder=True),
    RelatedPerson("哥哥", "older brother", "male"),
    RelatedPerson("姐姐", "older sister", "female"),
    RelatedPerson("弟弟", "younger brother", "male"),
    RelatedPerson("妹妹", "younger sister", "female"),
    RelatedPerson("朋友", "friend", family=False),
    RelatedPerson("老师", "teacher", family=False),
    RelatedPerson("同学", "classmate", family=False),
)
SIBLINGS = tuple(
    Noun(relative.chinese, relative.english, "个")
    for relative in RELATIVES
    if relative.english.endswith(("brother", "sister"))
)
STRANGERS = _nouns("孩子 child, 学生 student", "个") + _nouns("老师 teacher, 医生 doctor", "位")
PROFESSIONS = _nouns(
    "老师 teacher, 学生 student, 医生 doctor, 护士 nurse, 司机 driver, 工程师 engineer, 演员 actor"
)
# Things by their measure words, some with the English unit.
_COUNTED = {
    "个": "苹果 apple, 橙子 orange, 鸡蛋 egg, 饺子 dumpling, 蛋糕 cake, 故事 story, 杯子 cup, "
    "碗 bowl, 盒子 box, 孩子 child, 朋友 friend",
    "根": "香蕉 banana",
    "本": "书 book, 小说 novel",
    "份": "报纸 newspaper",
    "封": "信 letter",
    "部": "电影 movie, 手机 phone",
    "张": "照片 photo, 票 ticket, 桌子 table",
    "把": "椅子 chair, 雨伞 umbrella, 刀 knife",
    "支": "笔 pen",
    "件": "衬衫 shirt",
    "顶": "帽子 hat",
    "台": "电脑 computer",
    "辆": "自行车 bicycle, 车 car",
    "朵": "花 flower",
    "只": "猫 cat, 狗 dog, 鸟 bird",
    "条": "鱼 fish",
}
_MASSES = {
    "片 slice": "面包 bread",
    "碗 bowl": "米饭 rice",
    "杯 glass": "水 water, 牛奶 milk, 果汁 juice",
    "杯 cup": "茶 tea, 咖啡 coffee",
    "": "音乐 music, 电视 TV, 足球 football, 篮球 basketball, 英语 English, 中文 Chinese, "
    "数学 math, 钱 money, 时间 time",
}
_PLURALS = {
    "碗 bowl": "面条 noodles",
    "条 pair": "裤子 pants",
    "双 pair": "鞋 shoes",
    "": "衣服 clothes",
}
NOUNS = {
    noun.chinese: noun
    for kind, by_measure in zip(Countability, (_COUNTED, _MASSES, _PLURALS), strict=True)
    for measure, words in by_measure.items()
    for noun in _nouns(words, measure, kind)
}

NUMERALS = {"一": "a", "两": "two", "三": "three", "四": "four", "五": "five", "六": "six"}
# Small numbers are the common ones in everyday talk.
NUMERAL_WEIGHTS = (6, 5, 4, 3, 3, 3)
AMOUNTS = {"很多": "a lot of", "一些": "some"}
POINTERS = {"这": ("this", "these"), "那": ("that", "those")}

THING_QUALITIES = (
    Quality("红色", "red", "红色的", "苹果 花 衬衫 裤子 帽子 鞋 车 自行车 杯子 雨伞 笔"),
    Quality("蓝色", "blue", "蓝色的", "衬衫 裤子 帽子 鞋 车 自行车 杯子 雨伞 笔"),
    Quality("白色", "white", "白色的", "花 衬衫 裤子 帽子 鞋 车 杯子 猫 狗 鸟"),
    Quality("黑色", "black", "黑色的", "衬衫 裤子 帽子 鞋 车 雨伞 笔 猫 狗 鸟"),
    Quality("新", "new", "新", "书 小说 衬衫 裤子 帽子 鞋 手机 电脑 自行车 车 椅子 桌子 杯子"),
    Quality("旧", "old", "旧", "书 报纸 衬衫 帽子 鞋 手机 电脑 自行车 车 雨伞 椅子 桌子"),
    Quality("大", "big", "大", "苹果 橙子 鱼 狗 盒子 桌子 碗 蛋糕"),
    Quality("小", "small", "小", "苹果 狗 猫 鸟 鱼 盒子 桌子 椅子 碗 刀"),
    Quality("漂亮", "beautiful", "漂亮的", "花 帽子 鸟 鞋 照片 衬衫"),
    Quality("便宜", "cheap", "便宜的", "衬衫 裤子 帽子 鞋 手机 电脑 自行车 雨伞 票 椅子"),
    Quality("贵", "expensive", "", "书 衬衫 裤子 帽子 鞋 手机 电脑 自行车 车 雨伞 票 椅子 蛋糕"),
    Quality("精彩", "exciting", "精彩的", "书 小说 电影 故事"),
)
COLOURS = {"红色", "蓝色", "白色", "黑色"}
LASTING_QUALITIES = tuple(
    Quality(*pair) for pair in pairs("高 tall, 聪明 smart, 友好 friendly, 强壮 strong")
)
PASSING_QUALITIES = tuple(
    Quality(*pair) for pair in pairs("忙 busy, 累 tired, 高兴 happy, 饿 hungry, 生气 angry")
)

PLACES = {
    place.chinese: place
    for place in (
        Place("家", "at home"),
        Place("家里", "at home"),
        Place("学校", "at school", "to school", "bus bicycle car foot"),
        Place("公园", "in the park", "to the park", "bus bicycle car foot"),
        Place("图书馆", "at the library", "to the library", "bus bicycle car foot"),
        Place("超市", "at the supermarket", "to the supermarket", "bus bicycle car foot"),
        Place("商店", "at the store", "to the store", "bus bicycle car foot"),
        Place("饭馆", "at the restaurant", "to the restaurant", "bus bicycle car foot"),
        Place("医院", "at the hospital", "to the hospital", "bus bicycle car foot"),
        Place("办公室", "in the office", "to the office", "bus bicycle car foot"),
        Place("教室", "in the classroom"),
        Place("厨房", "in the kitchen"),
        Place("北京", "in Beijing", "to Beijing", "train plane car"),
        Place("上海", "in Shanghai", "to Shanghai", "train plane car"),
        Place("中国", "in China", "to China", "plane"),
    )
}
TRANSPORTS = {
    "bus": Adverbial("坐公交车", "by bus"),
    "bicycle": Adverbial("骑自行车", "by bicycle"),
    "car": Adverbial("开车", "by car"),
    "foot": Adverbial("走路", "on foot"),
    "train": Adverbial("坐火车", "by train"),
    "plane": Adverbial("坐飞机", "by plane"),
}
# Places of things, and the things there.
SPOTS = {
    Adverbial("桌子上", "on the table"): (
        "苹果 橙子 鸡蛋 蛋糕 面包 米饭 面条 水 牛奶 果汁 茶 咖啡 书 报纸 信 刀 笔 杯子 碗 电脑 花"
    ),
    Adverbial("椅子上", "on the chair"): "书 报纸 衬衫 裤子 帽子 手机 雨伞 猫 狗 照片",
    Adverbial("桌子下面", "under the table"): "盒子 猫 狗 鞋 雨伞 书 帽子 笔",
    Adverbial("冰箱里", "in the fridge"): "苹果 橙子 香蕉 鸡蛋 饺子 蛋糕 水 牛奶 果汁 鱼",
    Adverbial("房间里", "in the room"): "桌子 椅子 电脑 盒子 猫 狗 花 书 孩子 衣服",
    Adverbial("盒子里", "in the box"): "苹果 鸡蛋 照片 信 笔 刀 帽子 鞋 书 票 杯子",
    Adverbial("厨房里", "in the kitchen"): "刀 碗 杯子 桌子 椅子 苹果 香蕉 面包 面条 鸡蛋 米饭",
    Adverbial("教室里", "in the classroom"): "桌子 椅子 书 电脑 笔 孩子 花 帽子 雨伞",
    Adverbial("公园里", "in the park"): "花 鸟 狗 猫 孩子 自行车 鱼",
}

HABITS = _adverbials("每天 every day, 每天早上 every morning, 每天晚上 every evening")
# These may also stand in a negation: 我早上不喝咖啡.
OCCASIONS = _adverbials("早上 in the morning, 晚上 in the evening, 周末 on weekends")
FREQUENCIES = _adverbials("经常 often, 总是 always, 有时候 sometimes")
OFTEN = FREQUENCIES[0]
NOW = Adverbial("现在", "now")
YESTERDAY = _adverbials(
    "昨天 yesterday, 昨天早上 yesterday morning, 昨天晚上 last night, 今天早上 this morning, "
    "刚才 just now"
)
TOMORROW = _adverbials(
    "明天 tomorrow, 明天早上 tomorrow morning, 明天晚上 tomorrow evening, 今天晚上 tonight"
)
_LAST_WEEKS = _adverbials("上周 last week, 上个月 last month")
_NEXT_WEEKS = _adverbials("下周 next week, 下个月 next month")
# How long people mention a deed: eating an apple for days, a book for weeks, a journey for years.
PAST_TIMES = {
    "days": YESTERDAY,
    "weeks": YESTERDAY[:4] + _LAST_WEEKS,
    "years": (*YESTERDAY[:1], *_LAST_WEEKS, Adverbial("去年", "last year")),
}
FUTURE_TIMES = {
    "days": TOMORROW,
    "weeks": TOMORROW + _NEXT_WEEKS,
    "years": (*TOMORROW[:1], *_NEXT_WEEKS, Adverbial("明年", "next year")),
}
