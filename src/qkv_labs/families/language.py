"""A small language for lab 17: some patterns of the packaged corpus, new combinations held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from qkv.demo import descriptions, journeys, questions, states
from qkv.demo.clause import Sentence
from qkv.demo.corpus import held_out
from qkv.demo.grammar import Pattern

# Time, place and means move to the end, verbs and auxiliaries agree, and questions turn round.
FEW = (
    descriptions.comparison,
    descriptions.past_quality,
    states.feeling_for_people,
    journeys.travel,
)
MORE = (*FEW, descriptions.location, questions.whom)

Pair = tuple[str, str]


@dataclass(frozen=True)
class Language:
    """Chinese and English sentences in three parts."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def language(patterns: Sequence[Pattern], each: int) -> Language:
    """Draw sentences; validation and test hold pairings of words that training does not hold."""
    random, drawn = Random(0), dict[str, Sentence]()
    for pattern in patterns:
        for _ in range(each):
            sentence = pattern(random)
            drawn[sentence.chinese] = sentence
    pool = list(drawn.values())
    random.shuffle(pool)
    in_test, in_valid = held_out(random, pool)
    parts = Language([], [], [])
    for sentence in pool:
        tested = not in_test.isdisjoint(sentence.combinations)
        validated = not in_valid.isdisjoint(sentence.combinations)
        pair = sentence.chinese, f"{sentence.english}{'?' if sentence.question else '.'}"
        if tested and not validated:
            parts.test.append(pair)
        elif validated and not tested:
            parts.valid.append(pair)
        elif not tested:
            parts.train.append(pair)
    return parts
