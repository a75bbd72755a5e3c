"""How good a language model is: how well it foresees text, and the form of the poems it writes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from qkv.errors import UserError
from qkv.evaluate.scores import Score

HAN = "[〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]"
COUPLET = re.compile(f"(?:{HAN}{{5}}，{HAN}{{5}}|{HAN}{{7}}，{HAN}{{7}})[。？！；]")


def language_scores(total_nats: float, n_tokens: int, n_bytes: int) -> list[Score]:
    """All that we report of how well a text was foreseen.

    `total_nats` is −ln of the whole text's probability: the sum, not the mean, of the tokens' loss.
    """
    return [
        loss(total_nats, n_tokens),
        perplexity(total_nats, n_tokens),
        bits_per_byte(total_nats, n_bytes),
    ]


def loss(total_nats: float, n_tokens: int) -> Score:
    """The mean cross-entropy of a token, in nats."""
    return Score("loss", _mean(total_nats, n_tokens, "tokens"), digits=4)


def perplexity(total_nats: float, n_tokens: int) -> Score:
    """Among how many equally likely tokens the model was choosing; depends on the tokenizer."""
    mean = _mean(total_nats, n_tokens, "tokens")
    try:
        return Score("perplexity", math.exp(mean))
    except OverflowError:
        return Score("perplexity", math.inf)


def bits_per_byte(total_nats: float, n_bytes: int) -> Score:
    """The bits that a byte of UTF-8 takes, which compares models whatever their tokenizers."""
    return Score("bits per byte", _mean(total_nats, n_bytes, "bytes") / math.log(2), digits=4)


def accuracy(found: Sequence[object], expected: Sequence[object]) -> Score:
    """The share of answers that are the expected ones, in percent."""
    if len(found) != len(expected):
        raise UserError(
            f"There are {len(found)} answers but {len(expected)} expected ones; give one for each."
        )
    right = sum(one == other for one, other in zip(found, expected, strict=True))
    return Score("accuracy", 100 * _mean(right, len(expected), "answers"))


def well_formed_couplets(poem: str) -> tuple[int, int]:
    """How many lines of a classical Chinese poem are couplets, and how many lines it has.

    A couplet is two verses of five or seven characters each, "秦川雄帝宅，函谷壯皇居。", and
    nothing else. Blank lines do not count.
    """
    lines = _lines(poem)
    return sum(COUPLET.fullmatch(line) is not None for line in lines), len(lines)


def couplet_scores(poems: Sequence[str]) -> list[Score]:
    """The share of couplets among all lines, and of poems that are regular throughout, in percent.

    A regular poem has two or more lines, all of them couplets of one length.
    """
    counts = [well_formed_couplets(poem) for poem in poems]
    couplets, lines = sum(good for good, _ in counts), sum(total for _, total in counts)
    regular = sum(map(_is_regular, poems))
    return [
        Score("couplets", 100 * _mean(couplets, lines, "lines")),
        Score("regular poems", 100 * _mean(regular, len(poems), "poems")),
    ]


def _is_regular(poem: str) -> bool:
    good, total = well_formed_couplets(poem)
    return good == total >= 2 and len(set(map(len, _lines(poem)))) == 1


def _lines(poem: str) -> list[str]:
    return [line.strip() for line in poem.split("\n") if line.strip()]


def _mean(total: float, count: int, what: str) -> float:
    if count <= 0:
        raise UserError(f"There is nothing to score: the number of {what} is {count}.")
    return total / count
