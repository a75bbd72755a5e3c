"""Write sentence pairs of the phrasebook in recipes/phrases, its slots filled at random.

    python recipes/zh_en_phrases.py [--per-phrase 40] [--seed 0] > phrases.tsv

`slots.tsv` holds fillers (slot, Chinese, English), all other files phrases (Chinese, English), some
with slots in braces; {city} and {city2} are two fillers of one slot. Names, numbers, dates, times
and prices are made here. No pair is written that has a line of one of the files of `--without` on
either side; `--held-out FILE` writes every fortieth phrase without slots there instead.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

FOLDER = Path(__file__).parent / "phrases"
SLOT = re.compile(r"\{([a-z]+)(\d?)\}")
# 二 alone before a measure word is 两.
TWO = re.compile(
    "(?<![第十百千万之一二三四五六七八九零月年])二(?=[个位公分双只口块天层岁平张晚本条次站米辆页封名元人])"
)
START = re.compile(r"(?:^|(?<!Mr)(?<!Ms)(?<!Mrs)(?<!Dr)[.!?] )[a-z]")
Pair = tuple[str, str]

DIGITS = "零一二三四五六七八九"
WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen"""
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety"
ORDINALS = "_ first second third fourth fifth sixth seventh eighth ninth tenth"
MONTHS = """_ January February March April May June July August September October November
December"""
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
SURNAMES = """王 Wang 李 Li 张 Zhang 刘 Liu 陈 Chen 杨 Yang 黄 Huang 赵 Zhao 吴 Wu 周 Zhou 徐 Xu 孙 Sun
马 Ma 朱 Zhu 胡 Hu 郭 Guo 何 He 林 Lin 高 Gao 罗 Luo 郑 Zheng 梁 Liang 谢 Xie 宋 Song 唐 Tang 许 Xu
韩 Han 冯 Feng 邓 Deng 曹 Cao 彭 Peng 曾 Zeng 肖 Xiao 田 Tian 董 Dong 袁 Yuan 潘 Pan 于 Yu 蒋 Jiang
蔡 Cai 余 Yu 杜 Du 叶 Ye 程 Cheng 苏 Su 魏 Wei 吕 Lü 丁 Ding 任 Ren 沈 Shen"""
GIVEN = """明 ming 伟 wei 芳 fang 娜 na 敏 min 静 jing 丽 li 强 qiang 磊 lei 军 jun 洋 yang 勇 yong
艳 yan 杰 jie 娟 juan 涛 tao 超 chao 霞 xia 平 ping 刚 gang 华 hua 红 hong 梅 mei 小 xiao 文 wen 建 jian
国 guo 志 zhi 玉 yu 英 ying 云 yun 雪 xue 海 hai 春 chun 秋 qiu 兰 lan 龙 long 飞 fei 鹏 peng 宇 yu
浩 hao 佳 jia 欣 xin 婷 ting 雨 yu 晨 chen 天 tian 思 si 子 zi 美 mei 东 dong 林 lin 波 bo"""


def word(words: str, n: int) -> str:
    """Return the nth word of a list of words."""
    return words.split()[n]


def pairs(words: str) -> list[Pair]:
    """Return words by twos."""
    split = words.split()
    return list(zip(split[::2], split[1::2], strict=True))


def chinese_number(n: int) -> str:
    """Write 0 to 99,999 in Chinese numerals."""
    if n < 10:
        return DIGITS[n]
    unit, name = max(
        (u, c) for u, c in ((10, "十"), (100, "百"), (1000, "千"), (10000, "万")) if u <= n
    )
    high, rest = divmod(n, unit)
    begin = name if unit == 10 and high == 1 else chinese_number(high) + name
    if not rest:
        return begin
    gap = "零" if rest < unit // 10 else ""
    more = chinese_number(rest)
    return begin + gap + ("一" + more if unit > 10 and 10 <= rest < 20 else more)


def english_number(n: int) -> str:
    """Write 0 to 99 in words."""
    if n < 20:
        return word(WORDS, n)
    tens, ones = divmod(n, 10)
    return word(TENS, tens) + (f"-{word(WORDS, ones)}" if ones else "")


def ordinal(n: int) -> str:
    """Write 1st, 2nd …"""
    end = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{end}"


def number(rng: Random) -> Pair:
    """Digits for digits, words for numerals."""
    n = rng.choice((rng.randint(2, 12), rng.randint(2, 20), rng.randint(2, 99)))
    if rng.random() < 0.4:
        return str(n), str(n)
    return chinese_number(n), english_number(n)


def large_number(rng: Random) -> Pair:
    """From 100 on, round ones more often; English has digits."""
    n = rng.choice((rng.randint(1, 9) * 100, rng.randint(1, 99) * 1000, rng.randint(100, 99_999)))
    return rng.choice((str(n), chinese_number(n))), f"{n:,}"


def rank(rng: Random) -> Pair:
    """The first to the tenth, or farther on."""
    n = rng.choice((rng.randint(1, 10), rng.randint(1, 31)))
    return "第" + chinese_number(n), word(ORDINALS, n) if n <= 10 else ordinal(n)


def day(rng: Random) -> Pair:
    """A day of the year."""
    month, n = rng.randint(1, 12), rng.randint(1, 28)
    end = rng.choice("号日")
    chinese = f"{month}月{n}{end}", f"{chinese_number(month)}月{chinese_number(n)}{end}"
    return rng.choice(chinese), f"{word(MONTHS, month)} {ordinal(n)}"


def year(rng: Random) -> Pair:
    """A year of the last or this century."""
    n = rng.randint(1950, 2030)
    return rng.choice((f"{n}年", "".join(DIGITS[int(d)] for d in str(n)) + "年")), str(n)


def clock(rng: Random) -> Pair:
    """A time of the day."""
    hour = rng.randint(1, 12)
    minutes = rng.choice((0, 0, 0, 30, 30, 15, 45, 10, 20, 40, 50, 5, 25, 35, 55))
    numeral = "两" if hour == 2 else chinese_number(hour)
    if rng.random() < 0.3:
        chinese = f"{hour}点" + (f"{minutes}分" if minutes else "")
    elif minutes == 30:
        chinese = f"{numeral}点半"
    else:
        more = {0: "", 15: "一刻", 5: "零五分"}.get(minutes, f"{chinese_number(minutes)}分")
        chinese = f"{numeral}点{more}"
    name = english_number(hour)
    english = {
        0: name,
        30: rng.choice((f"half past {name}", f"{hour}:30")),
        15: f"a quarter past {name}",
    }.get(minutes, f"{hour}:{minutes:02}")
    part, phrase = rng.choice(
        [("早上", "in the morning")] * (5 <= hour <= 9)
        + [("上午", "in the morning")] * (8 <= hour <= 11)
        + [("下午", "in the afternoon")] * (1 <= hour <= 5)
        + [("晚上", "in the evening")] * (6 <= hour <= 10)
        or [("中午", "at noon")]
    )
    if part == "中午":
        return (f"中午{chinese}", f"12:{minutes:02}") if hour == 12 else (chinese, english)
    if rng.random() < 0.5:
        return part + chinese, f"{english} {phrase}"
    return chinese, f"{english} o'clock" if not minutes else english


def price(rng: Random) -> Pair:
    """A sum of money."""
    n = rng.choice((rng.randint(2, 99), 10 * rng.randint(1, 99), 100 * rng.randint(1, 99)))
    unit = rng.choice("块元块")
    amount = rng.choice((str(n), "两" if n == 2 else chinese_number(n)))
    more = rng.choice(("", "钱")) if unit == "块" else ""
    return amount + unit + more, f"{n:,} yuan"


def person(rng: Random) -> Pair:
    """A Chinese full name, of two or three characters."""
    surname, name = rng.choice(pairs(SURNAMES))
    given = rng.sample(pairs(GIVEN), rng.choice((1, 2, 2)))
    chinese, english = ("".join(parts) for parts in zip(*given, strict=True))
    return surname + chinese, f"{name} {english.capitalize()}"


def telephone(rng: Random) -> Pair:
    """A number that is read digit by digit."""
    digits = "".join(rng.choices("0123456789", k=rng.choice((4, 8, 11))))
    return digits, digits


def weekday(rng: Random) -> Pair:
    """A day of the week."""
    n = rng.randrange(7)
    return rng.choice(("星期", "周", "礼拜")) + ("一二三四五六" + rng.choice("日天"))[n], WEEKDAYS[
        n
    ]


def month(rng: Random) -> Pair:
    """A month."""
    n = rng.randint(1, 12)
    return rng.choice((f"{n}月", f"{chinese_number(n)}月")), word(MONTHS, n)


MADE: dict[str, Callable[[Random], Pair]] = {
    "cname": person,
    "n": number,
    "bign": large_number,
    "ordinal": rank,
    "date": day,
    "year": year,
    "weekday": weekday,
    "month": month,
    "clock": clock,
    "price": price,
    "phone": telephone,
}


def read(slots: bool) -> Iterator[list[str]]:
    """Yield the fields of each line of the file of slots, or of all others."""
    for path in sorted(FOLDER.glob("*.tsv")):
        if (path.stem == "slots") == slots:
            for line in path.read_text("utf-8").splitlines():
                yield line.split("\t")


def letters(text: str) -> str:
    """Return a text without case, punctuation and spaces, by which lines are compared."""
    return re.sub(r"[\W_]", "", text.lower())


def fill(phrase: Pair, fillers: dict[str, list[Pair]], rng: Random) -> Pair:
    """Put a filler into each slot, no two alike; English sentences begin with a capital letter."""
    chinese, english = phrase
    chosen: dict[str, Pair] = {}
    for slot, again in SLOT.findall(chinese):
        if slot + again in chosen:
            continue
        made = draw(slot, fillers, rng)
        while any(left == made[0] or right == made[1] for left, right in chosen.values()):
            made = draw(slot, fillers, rng)
        chosen[slot + again] = made
    for name, (left, right) in chosen.items():
        chinese = chinese.replace("{" + name + "}", left)
        english = english.replace("{" + name + "}", right)
    chinese = TWO.sub("两", chinese)
    return chinese, START.sub(lambda match: match[0].upper(), english)


def draw(slot: str, fillers: dict[str, list[Pair]], rng: Random) -> Pair:
    """Make or choose a filler."""
    return MADE[slot](rng) if slot in MADE else rng.choice(fillers[slot])


def main() -> None:
    """Print the pairs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--per-phrase", type=int, default=40, help="pairs of a phrase with slots")
    parser.add_argument("--fixed", type=int, default=8, help="copies of a phrase without")
    parser.add_argument("--without", type=Path, nargs="*", default=[], help="texts to leave out")
    parser.add_argument("--held-out", type=Path, help="file for every fortieth phrase")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, fillers = Random(options.seed), defaultdict[str, list[Pair]](list)
    for slot, chinese, english in read(slots=True):
        fillers[slot].append((chinese, english))
    left_out = {
        letters(text)
        for path in options.without
        for line in path.read_text("utf-8").splitlines()
        for text in line.split("\t")
    }
    phrases = [(chinese, english) for chinese, english in read(slots=False)]
    if options.held_out:
        plain = sorted({phrase for phrase in phrases if not SLOT.search(phrase[0])})
        held_out = [pair for pair in plain[::40] if left_out.isdisjoint(map(letters, pair))]
        options.held_out.write_text("".join("\t".join(pair) + "\n" for pair in held_out), "utf-8")
        left_out |= {letters(chinese) for chinese, _ in held_out}
    for phrase in phrases:
        slots = SLOT.findall(phrase[0])
        n_pairs = options.per_phrase if slots else options.fixed
        if len(slots) == 1 and slots[0][0] in fillers:
            n_pairs = min(n_pairs, 2 * len(fillers[slots[0][0]]))
        for _ in range(n_pairs):
            pair = fill(phrase, fillers, rng)
            if not left_out.isdisjoint(map(letters, pair)):
                continue
            chinese, english = pair
            if rng.random() < 0.2:  # as people type
                chinese = chinese.rstrip("。")
            print(chinese, english, sep="\t")


if __name__ == "__main__":
    main()
