from collections.abc import Callable
from functools import cache

import pytest

from qkv.config import TokenizerConfig
from qkv.text import Tokenizer, train_tokenizer

LINES = [
    "The cat sat on the mat, and the dog sat on the log.",
    "the singer is singing; the ringer isn't ringing!",
    "Where is the cat? The cat is there .",
    "Die Straße ist schön, und die Bäume sind grün.",
    "Über die Größe der Straße weiß ich nichts.",
    "我爱你，中国。我们爱中国的山和水。",
    "你爱我吗？我不知道你爱不爱我。",
    "السَّلَامُ عَلَيْكُمْ",
    "שָׁלוֹם עֲלֵיכֶם",
    "In 2017 und 1984 …  <eos> ## 👍",
] * 3

BYTE_KINDS = ("bpe", "unigram", "char", "byte")
KINDS = (*BYTE_KINDS, "wordpiece")


@pytest.fixture(scope="session")
def lines() -> list[str]:
    return LINES


@pytest.fixture(scope="session")
def trained() -> Callable[[str], Tokenizer]:
    """Hand out one tokenizer of each kind, trained once."""
    return cache(lambda kind: train_tokenizer(LINES, TokenizerConfig(kind=kind, vocab_size=500)))


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=BYTE_KINDS)
def byte_kind(request: pytest.FixtureRequest) -> str:
    """Name a kind that spells unseen characters in bytes."""
    return str(request.param)
