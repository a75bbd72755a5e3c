"""Examples in their three uses, whatever they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from qkv.config import DataConfig
from qkv.data.corpus import draw_keys
from qkv.errors import UserError

Example = TypeVar("Example")


@dataclass(frozen=True)
class Splits(Generic[Example]):
    """What is learnt from, chosen by and tested on; `test` may be empty."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]


def read_splits(
    config: DataConfig,
    seed: int,
    read: Callable[[Sequence[str], str], list[Example]],
    key: Callable[[Example], str],
    labels: Callable[[Example], Collection[str]] = lambda example: (),
) -> Splits[Example]:
    """Read the examples that `config` names, and cut a validation split off where it names none.

    `read` takes paths and the prefix of the setting that named them. Examples with the same `key`
    stay on the same side: what is validated with and trained on as well measures memory. None is
    cut off that has one of the `labels` which no example would be left to teach.
    """
    train = read(config.examples, "")
    if config.valid_examples:
        valid = read(config.valid_examples, "valid_")
    else:
        train, valid = _cut_off(train, config.valid_size, seed, key, labels)
    test = read(config.test_examples, "test_") if config.test_examples else []
    return Splits(train, valid, test)


def _cut_off(
    examples: list[Example],
    size: int,
    seed: int,
    key: Callable[[Example], str],
    labels: Callable[[Example], Collection[str]],
) -> tuple[list[Example], list[Example]]:
    keys = [key(example) for example in examples]
    named = list(zip(examples, keys, strict=True))
    held_out = draw_keys(keys, min(size, len(keys) // 10), seed)
    taught = {label for one, name in named if name not in held_out for label in labels(one)}
    held_out -= {name for one, name in named if not taught.issuperset(labels(one))}
    if not held_out:
        raise UserError(
            f"data: {len(keys)} examples are too few, or too alike, to cut a tenth off for "
            f"validation; give valid_examples."
        )
    kept = [one for one, name in named if name not in held_out]
    return kept, [one for one, name in named if name in held_out]


def draw_examples(
    examples: list[Example], size: int, seed: int, kind: Callable[[Example], Hashable]
) -> list[Example]:
    """Draw `size` of the examples at random, as many of each kind as can be; 0 draws all.

    A larger draw with the same seed holds the smaller one, so that curves over sizes are of one
    piece.
    """
    if not size or size >= len(examples):
        return examples
    order = np.random.default_rng(seed).permutation(len(examples))
    by_kind: dict[Hashable, list[int]] = defaultdict(list)
    for index in order:
        by_kind[kind(examples[index])].append(int(index))
    rounds = max(map(len, by_kind.values()))
    taken = [rows[turn] for turn in range(rounds) for rows in by_kind.values() if turn < len(rows)]
    return [examples[index] for index in taken[:size]]
