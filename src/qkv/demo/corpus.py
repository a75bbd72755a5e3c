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

from qkv.demo.clause import Sentence
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

# The sentences that the README promises; no seed may let them into training.
PROMISED = (
    Sentence("我爱你", "I love you", False, frozenset({("clause", "我", "爱", "你")})),
    Sentence("我爱学习", "I love studying", False, frozenset({("clause", "我", "爱", "学习")})),
    Sentence(
        "我吃了一个苹果", "I ate an apple", False, frozenset({("clause", "我", "吃", "苹果")})
    ),
)

Pair = tuple[str, str]


@dataclass(frozen=True)
class DemoCorpus:
    """Pairs of a Chinese and an English sentence."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


@dataclass(frozen=True)
class Split:
    """The same three parts before their final marks, with the combinations in each sentence."""

    train: list[Sentence]
    valid: list[Sentence]
    test: list[Sentence]


def demo_corpus(seed: int = 0) -> DemoCorpus:
    """The corpus that this seed draws: 40,000 training, 500 validation and 1,000 test pairs."""
    rng = Random(seed)
    split = split_sentences(rng)
    promised = [(sentence.chinese, sentence.english) for sentence in PROMISED]
    return DemoCorpus(
        [_finished(rng, sentence) for sentence in split.train],
        [_finished(rng, sentence) for sentence in split.valid],
        promised + [_finished(rng, sentence) for sentence in split.test],
    )


def split_sentences(rng: Random) -> Split:
    """Draw sentences, hold combinations out, and deal each sentence to the part it may be in."""
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


def _well_known(sentences: Iterable[Sentence]) -> set[str]:
    """The English word forms that one can have learned from these sentences."""
    counts = Counter(word for sentence in sentences for word in sentence.english.split())
    return {word for word, count in counts.items() if count >= _FEWEST_SIGHTINGS}


def _draw_pool(rng: Random) -> list[Sentence]:
    """As many sentences of each pattern, none twice and none of those promised, in any order."""
    seen = {sentence.chinese for sentence in PROMISED}
    pool = [sentence for pattern in PATTERNS.values() for sentence in _draw(rng, pattern, seen)]
    rng.shuffle(pool)
    return pool


def _draw(rng: Random, pattern: Pattern, seen: set[str]) -> Iterator[Sentence]:
    found = 0
    while found < _PER_PATTERN:
        sentence = pattern(rng)
        if sentence.chinese not in seen and len(sentence.chinese) in _LENGTHS:
            seen.add(sentence.chinese)
            found += 1
            yield sentence


def held_out(rng: Random, pool: Iterable[Sentence]) -> tuple[set[Combination], set[Combination]]:
    """Combinations for test and for validation: a share of each relation between words."""
    test = {each for sentence in PROMISED for each in sentence.combinations}
    valid: set[Combination] = set()
    combinations = sorted({each for sentence in pool for each in sentence.combinations} - test)
    alternatives = Counter(context for each in combinations for context in _contexts(each))
    losses = Counter(context for each in test for context in _contexts(each))
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
    """Combinations, in any order, that one can work out from those that remain."""
    rng.shuffle(combinations)
    for each in combinations:
        contexts = _contexts(each)
        if each[:2] != ("object", AMBIGUOUS) and all(
            _can_spare(alternatives[context], losses[context]) for context in contexts
        ):
            losses.update(contexts)
            yield each


def _contexts(combination: Combination) -> list[Combination]:
    """The combination with a gap at either end: (吃, _) and (_, 苹果)."""
    relation, *words = combination
    return [(relation, "_", *words[1:]), (relation, *words[:-1], "_")]


def _can_spare(alternatives: int, losses: int) -> bool:
    """Whether enough words remain for a gap to learn its form from; no more than a quarter goes."""
    return alternatives >= _FEWEST_ALTERNATIVES and 4 * (losses + 1) <= alternatives


def _finished(rng: Random, sentence: Sentence) -> Pair:
    """With final marks on both sides, or, as people type, on neither."""
    if rng.random() > _MARKED_SHARE:
        return sentence.chinese, sentence.english
    chinese_mark, english_mark = "？?" if sentence.question else "。."
    return sentence.chinese + chinese_mark, sentence.english + english_mark
