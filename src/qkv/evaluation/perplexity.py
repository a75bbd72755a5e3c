"""How well a language model predicts text, and the form of the poems that it writes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from qkv.errors import UserError
from qkv.evaluation.scores import Score

HAN = "[〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]"
COUPLET = re.compile(f"(?:{HAN}{{5}}，{HAN}{{5}}|{HAN}{{7}}，{HAN}{{7}})[。？！；]")


def language_scores(total_nats: float, n_tokens: int, n_bytes: int) -> list[Score]:
    """Loss, perplexity and bits per byte of a text.

    `total_nats` is −ln of the whole text's probability: the sum, not the mean, of the tokens' loss.
    """
    return [
        loss(total_nats, n_tokens),
        perplexity(total_nats, n_tokens),
        bits_per_byte(total_nats, n_bytes),
    ]


def loss(total_nats: float, n_tokens: int) -> Score:
    """Mean cross-entropy of a token, in nats."""
    return Score("loss", _mean(total_nats, n_tokens, "tokens"), digits=4)


def perplexity(total_nats: float, n_tokens: int) -> Score:
    """Number of equally likely tokens with the same mean loss; depends on the tokenizer."""
    mean = _mean(total_nats, n_tokens, "tokens")
    try:
        return Score("perplexity", math.exp(mean))
    except OverflowError:
        return Score("perplexity", math.inf)


def bits_per_byte(total_nats: float, n_bytes: int) -> Score:
    """Bits that a byte of UTF-8 takes, which compares models whatever their tokenizers."""
    return Score("bits per byte", _mean(total_nats, n_bytes, "bytes") / math.log(2), digits=4)


def couplet_scores(poems: Sequence[str]) -> list[Score]:
    """Percentage of lines that are couplets, and of poems that are regular throughout.

    A couplet is two verses of five or seven characters, "秦川雄帝宅，函谷壯皇居。", and nothing
    else. A regular poem has two or more lines, all of them couplets of one length. Blank lines do
    not count.
    """
    lines = [[line.strip() for line in poem.split("\n") if line.strip()] for poem in poems]
    couplets = [sum(COUPLET.fullmatch(line) is not None for line in poem) for poem in lines]
    regular = [
        count == len(poem) >= 2 and len(set(map(len, poem))) == 1
        for count, poem in zip(couplets, lines, strict=True)
    ]
    return [
        Score("couplets", 100 * _mean(sum(couplets), sum(map(len, lines)), "lines")),
        Score("regular poems", 100 * _mean(sum(regular), len(poems), "poems")),
    ]


def _mean(total: float, count: int, what: str) -> float:
    if count <= 0:
        raise UserError(f"There is nothing to score: the number of {what} is {count}.")
    return total / count
