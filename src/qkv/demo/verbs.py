"""The verbs of the demo grammar, with their objects and places."""

from dataclasses import dataclass
from functools import cached_property

from qkv.demo.lexicon import NOUNS, PLACES, Adverbial, Noun, pick


@dataclass(frozen=True)
class Verb:
    """A verb; `negation` overrides the 不 or 没 of its tense."""

    chinese: str
    english: str
    negation: str = ""


@dataclass(frozen=True)
class Deed(Verb):
    """An action verb; two deeds may share a verb if their objects behave differently."""

    objects: str = ""
    """Its objects, separated by spaces; none for 跑步, and none where objects are people."""
    places: str = ""
    people: bool = False
    repeats: bool = True
    """Whether people do it every day."""
    span: str = "days"
    """How long ago and how far ahead it is mentioned: days, weeks or years."""
    single: bool = False
    """Whether a bare object of one occasion is one thing: 他昨天在家里看书, he read a book."""
    bare: bool = True
    """Whether its object may be bare: 洗车 needs to say whose car."""
    most: int = 6
    """The largest plausible number of its objects."""

    @cached_property
    def nouns(self) -> tuple[Noun, ...]:
        """Look up the objects."""
        return pick(NOUNS, self.objects)

    @cached_property
    def measured(self) -> tuple[Noun, ...]:
        """List the objects that can be counted or measured."""
        return tuple(noun for noun in self.nouns if noun.measure)

    @cached_property
    def scenes(self) -> tuple[Adverbial, ...]:
        """List the places as adverbials."""
        found = (PLACES[name] for name in self.places.split())
        return tuple(Adverbial(place.chinese, place.at) for place in found)


IS = Verb("是", "be", negation="不")
IS_AT = Verb("在", "be", negation="不")
IS_LIKE = Verb("", "be", negation="不")
THERE_IS = Verb("有", "be")
THERE_IS_NOT = Verb("没有", "be")
HAVE = Verb("有", "have", negation="没")
GIVE = Verb("给", "give")
WANT = Verb("想", "want")
LOVE = Verb("爱", "love")
LIKE = Verb("喜欢", "like")
NEED = Verb("需要", "need")
KNOW = Verb("认识", "know")
MISS = Verb("想念", "miss")
BELIEVE = Verb("相信", "believe")
GO = Deed("去", "go")
GO_FAR = Deed("去", "go", repeats=False, span="years")
GO_BACK = Deed("回", "go")
SEE = Deed("看见", "see", people=True, places="公园 学校 超市 图书馆 饭馆 商店", span="weeks")

# Things that people like or love in general.
LIKED = pick(
    NOUNS,
    "苹果 橙子 香蕉 鸡蛋 饺子 蛋糕 面包 米饭 面条 牛奶 果汁 茶 咖啡 小说 电影 花 猫 狗 鸟 孩子"
    " 音乐 足球 篮球 英语 中文 数学",
)
# Things that people like, need or have in particular: this hat, my mother's bicycle.
BELONGINGS = pick(
    NOUNS,
    "书 小说 报纸 照片 票 桌子 椅子 雨伞 刀 笔 杯子 盒子 衬衫 裤子 帽子 鞋 手机 电脑 自行车 车"
    " 猫 狗",
)

TRAVEL = Deed("旅行", "travel", places="中国 北京 上海", repeats=False, span="years")
ACTIVITIES = (
    Deed("学习", "study", places="学校 图书馆 家里 教室", span="years"),
    Deed("工作", "work", places="医院 学校 办公室 家里 饭馆 商店 北京 上海", span="years"),
    Deed("游泳", "swim"),
    Deed("跑步", "run", places="公园 学校"),
    Deed("唱歌", "sing", places="公园 学校 家里 教室"),
    Deed("跳舞", "dance", places="公园 学校 家里 教室"),
    Deed("做饭", "cook", places="家里 厨房 饭馆"),
    Deed("休息", "rest", places="家里 公园"),
    TRAVEL,
)
# Pastimes with an uncounted object; with ACTIVITIES they take 了 at the end.
PASTIMES = (
    Deed("学习", "study", objects="英语 中文 数学", places="学校 图书馆 家里 教室", span="years"),
    Deed("教", "teach", objects="英语 中文 数学 音乐", places="学校 北京 上海", span="years"),
    Deed("听", "listen to", objects="音乐", places="家里 公园 教室"),
    Deed("看", "watch", objects="电视", places="家里"),
    Deed("踢", "play", objects="足球", places="公园 学校"),
    Deed("打", "play", objects="篮球", places="公园 学校"),
    Deed("洗", "wash", objects="衣服", places="家里"),
)
DEEDS = (
    Deed(
        "吃",
        "eat",
        objects="苹果 橙子 香蕉 蛋糕",
        places="家里 学校 饭馆 办公室",
        most=3,
    ),
    Deed("吃", "eat", objects="面包 米饭 面条", places="家里 学校 饭馆", most=3),
    Deed("吃", "eat", objects="鸡蛋 饺子", places="家里 学校 饭馆"),
    Deed("喝", "drink", objects="水 牛奶 果汁 茶 咖啡", places="家里 学校 饭馆 办公室", most=3),
    Deed("买", "buy", objects="苹果 橙子 香蕉 鸡蛋 花 报纸", places="超市 商店"),
    Deed("买", "buy", objects="蛋糕 果汁 咖啡", places="超市 商店", most=3),
    Deed(
        "买",
        "buy",
        objects="书 小说 票 椅子 雨伞 刀 笔 杯子 碗 盒子 衬衫 裤子 帽子 鞋",
        places="商店 超市 北京 上海",
        repeats=False,
        span="weeks",
    ),
    Deed(
        "买",
        "buy",
        objects="桌子 手机 电脑 自行车 车",
        places="商店 北京 上海",
        repeats=False,
        span="years",
        bare=False,
        most=2,
    ),
    Deed("卖", "sell", objects="苹果 橙子 香蕉 鸡蛋", places="商店 超市"),
    Deed("卖", "sell", objects="花 报纸 雨伞 衬衫 裤子 帽子 鞋", places="商店 超市"),
    Deed("洗", "wash", objects="苹果 橙子 杯子 碗 刀 衬衫 裤子", places="家里"),
    Deed("洗", "wash", objects="车", places="家里", bare=False, most=2),
    Deed("做", "make", objects="饺子 蛋糕 面条", places="家里 厨房 饭馆", most=3),
    Deed(
        "看",
        "read",
        objects="书 小说 报纸",
        places="图书馆 家里 公园 学校 教室",
        span="weeks",
        single=True,
        most=3,
    ),
    Deed("看", "watch", objects="电影", places="家里 学校", span="weeks", single=True, most=2),
    Deed("写", "write", objects="信 故事", places="家里 图书馆 办公室", single=True, most=3),
    Deed("听", "listen to", objects="故事", places="家里 教室 图书馆", most=3),
    Deed("画", "draw", objects="花 鸟 猫 狗 鱼", places="家里 学校 公园 教室", single=True),
    Deed("拍", "take", objects="照片", places="公园 学校 北京 上海 中国", span="weeks"),
    Deed(
        "借",
        "borrow",
        objects="书 小说 雨伞 笔 自行车 椅子 刀",
        repeats=False,
        span="weeks",
        single=True,
        most=3,
    ),
)
HELPING = (
    Deed("帮助", "help", people=True, places="学校 家里 办公室"),
    Deed("照顾", "look after", people=True, places="家里 医院"),
)
WAIT = Deed("等", "wait for", people=True, places="公园 学校 饭馆 超市 图书馆 商店")
# 看 is "read" or "watch", by its object: so none of its objects may be new in the test.
AMBIGUOUS = "看"
