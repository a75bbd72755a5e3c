"""The packaged demo corpus: sentences drawn from the grammar, split by combinations of words.

Test and validation sentences hold pairings of words that no training sentence holds (this subject
with this verb and object, this number with this noun), while each word is met elsewhere. So a model
that scores well has learned how the words combine, and not which sentences there are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from random import Random
from typing import Generic, TypeVar

from qkv.demo.clause import SentencePair
from qkv.demo.grammar import PATTERNS, Pattern
from qkv.demo.phrases import Combination
from qkv.demo.verbs import AMBIGUOUS

N_TRAIN, N_VALID, N_TEST = 40_000, 500, 1_000
_PER_PATTERN = 1_100
_LENGTHS = range(3, 17)
_TEST_SHARE, _VALID_SHARE = 0.04, 0.02
_MARKED_SHARE = 0.65
_FEWEST_ALTERNATIVES = 4
_FEWEST_SIGHTINGS = 20

# The README's example sentences, which are in no training set.
PROMISED = (
    SentencePair("我爱你", "I love you", False, frozenset({("clause", "我", "爱", "你")})),
    SentencePair("我爱学习", "I love studying", False, frozenset({("clause", "我", "爱", "学习")})),
    SentencePair(
        "我吃了一个苹果", "I ate an apple", False, frozenset({("clause", "我", "吃", "苹果")})
    ),
)

T = TypeVar("T")
Pair = tuple[str, str]


@dataclass(frozen=True)
class Split(Generic[T]):
    """Training, validation and test sentences."""

    train: list[T]
    valid: list[T]
    test: list[T]


DemoCorpus = Split[Pair]
"""Pairs of a Chinese and an English sentence."""


def demo_corpus(seed: int = 0) -> DemoCorpus:
    """Generate the corpus of a seed: 40,000 training, 500 validation and 1,000 test pairs."""
    rng = Random(seed)
    split = split_sentences(rng)
    promised = [(sentence.chinese, sentence.english) for sentence in PROMISED]
    parts = (split.train, split.valid, split.test)
    train, valid, test = ([_finished(rng, sentence) for sentence in part] for part in parts)
    return DemoCorpus(train, valid, promised + test)


def split_sentences(rng: Random) -> Split[SentencePair]:
    """Draw sentences, hold combinations out, and assign each sentence to its split."""
    pool = _draw_pool(rng)
    in_test, in_valid = held_out(rng, pool)
    train, valid, test = [], [], []
    for sentence in pool:
        tested = not in_test.isdisjoint(sentence.combinations)
        validated = not in_valid.isdisjoint(sentence.combinations)
        if tested and not validated:
            test.append(sentence)
        elif validated and not tested:
            valid.append(sentence)
        elif not tested:
            train.append(sentence)
    train = train[:N_TRAIN]
    known = _well_known(train)
    valid = [sentence for sentence in valid if known.issuperset(sentence.english.split())]
    test = [sentence for sentence in test if known.issuperset(sentence.english.split())]
    return Split(train, valid[:N_VALID], test[: N_TEST - len(PROMISED)])


def _well_known(sentences: Iterable[SentencePair]) -> set[str]:
    """List the English word forms that occur often enough in these sentences to be learned."""
    counts = Counter(word for sentence in sentences for word in sentence.english.split())
    return {word for word, count in counts.items() if count >= _FEWEST_SIGHTINGS}


def _draw_pool(rng: Random) -> list[SentencePair]:
    """Draw equally many sentences of each pattern, without repeats and promised ones, shuffled."""
    seen = {sentence.chinese for sentence in PROMISED}
    pool = [sentence for pattern in PATTERNS.values() for sentence in _draw(rng, pattern, seen)]
    rng.shuffle(pool)
    return pool


def _draw(rng: Random, pattern: Pattern, seen: set[str]) -> Iterator[SentencePair]:
    n_drawn = 0
    while n_drawn < _PER_PATTERN:
        sentence = pattern(rng)
        if sentence.chinese not in seen and len(sentence.chinese) in _LENGTHS:
            seen.add(sentence.chinese)
            n_drawn += 1
            yield sentence


def held_out(
    rng: Random, pool: Iterable[SentencePair]
) -> tuple[set[Combination], set[Combination]]:
    """Choose combinations for test and for validation: a share of each relation between words."""
    test = {pair for sentence in PROMISED for pair in sentence.combinations}
    valid: set[Combination] = set()
    combinations = sorted({pair for sentence in pool for pair in sentence.combinations} - test)
    alternatives = Counter(context for pair in combinations for context in _contexts(pair))
    losses = Counter(context for pair in test for context in _contexts(pair))
    for _, group in groupby(combinations, key=itemgetter(0)):
        related = list(group)
        spared = _spared(rng, related, alternatives, losses)
        test.update(islice(spared, round(_TEST_SHARE * len(related))))
        valid.update(islice(spared, round(_VALID_SHARE * len(related))))
    return test, valid


def _spared(
    rng: Random,
    combinations: list[Combination],
    alternatives: Counter[Combination],
    losses: Counter[Combination],
) -> Iterator[Combination]:
    """Yield combinations, in the given order, that can be inferred from those that remain."""
    rng.shuffle(combinations)
    for combination in combinations:
        contexts = _contexts(combination)
        if combination[:2] != ("object", AMBIGUOUS) and all(
            _can_spare(alternatives[context], losses[context]) for context in contexts
        ):
            losses.update(contexts)
            yield combination


def _contexts(combination: Combination) -> list[Combination]:
    """Return the combination with a gap at either end: (吃, _) and (_, 苹果)."""
    relation, *words = combination
    return [(relation, "_", *words[1:]), (relation, *words[:-1], "_")]


def _can_spare(alternatives: int, losses: int) -> bool:
    """Whether enough words remain to learn a gap's form from; at most a quarter is held out."""
    return alternatives >= _FEWEST_ALTERNATIVES and 4 * (losses + 1) <= alternatives


def _finished(rng: Random, sentence: SentencePair) -> Pair:
    """Add final marks to both sides or, as people often type, to neither."""
    if rng.random() > _MARKED_SHARE:
        return sentence.chinese, sentence.english
    chinese_mark, english_mark = "？?" if sentence.question else "。."
    return sentence.chinese + chinese_mark, sentence.english + english_mark
