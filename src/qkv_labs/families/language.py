"""A small language for lab 17: some patterns of the demo grammar, new combinations held out."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from qkv.demo import PATTERNS, DemoCorpus, SentencePair, held_out

# Time, place and means move to the end, verbs and auxiliaries agree, and questions turn round.
FEW = ("comparison", "past_quality", "feeling_for_people", "travel")
MORE = (*FEW, "location", "whom")


def language(patterns: Sequence[str], each: int) -> DemoCorpus:
    """Draw sentences; validation and test have combinations of words that training has not."""
    random, drawn = Random(0), dict[str, SentencePair]()
    for pattern in patterns:
        for _ in range(each):
            sentence = PATTERNS[pattern](random)
            drawn[sentence.chinese] = sentence
    pool = list(drawn.values())
    random.shuffle(pool)
    in_test, in_valid = held_out(random, pool)
    splits = DemoCorpus([], [], [])
    for sentence in pool:
        tested = not in_test.isdisjoint(sentence.combinations)
        validated = not in_valid.isdisjoint(sentence.combinations)
        pair = sentence.chinese, f"{sentence.english}{'?' if sentence.question else '.'}"
        if tested and not validated:
            splits.test.append(pair)
        elif validated and not tested:
            splits.valid.append(pair)
        elif not tested:
            splits.train.append(pair)
    return splits
