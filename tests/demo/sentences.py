"""The demo's language for tests: some pairs at once, or the whole corpus, generated once."""

from __future__ import annotations

from functools import cache
from itertools import cycle, islice
from random import Random

from qkv.demo import PATTERNS, demo_corpus

whole_corpus = cache(demo_corpus)


def demo_pairs(n: int) -> list[tuple[str, str]]:
    """Draw pairs of all patterns in turn, which takes no time; the corpus takes seconds."""
    rng = Random(0)
    drawn = (pattern(rng) for pattern in cycle(PATTERNS.values()))
    return [(sentence.chinese, sentence.english) for sentence in islice(drawn, n)]
