"""Examples for training, validation and test, whatever they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from qkv.errors import UserError

Example = TypeVar("Example")


@dataclass(frozen=True)
class Splits(Generic[Example]):
    """Examples to learn from, to choose the best weights by and to test on; `test` may be empty."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]


def read_splits(
    read: Callable[[str], list[Example]],
    name: str,
    size: int,
    seed: int,
    key: Callable[[Example], Hashable],
    labels: Callable[[Example], Collection[Hashable]] = lambda example: (),
) -> Splits[Example]:
    """Read the three splits, and hold validation examples out where none are given.

    `read` takes the prefix of a split's settings ("", "valid_", "test_") and returns its examples,
    none where no file is named. `name` is the setting ("pairs", "records", "examples"). At most
    `size` examples, and a tenth, are held out: all with the same `key` or none, for validation on
    what is trained on measures memory, and none whose `labels` would be missing in training.
    Examples that are given in two splits stay in both.
    """
    train, valid, test = (read(prefix) for prefix in ("", "valid_", "test_"))
    if not train:
        raise UserError(
            f"data: no {name} are given; set {_settings(name)} under [data] to files to train on."
        )
    if not valid:
        train, valid = _hold_out(train, name, size, seed, key, labels)
    return Splits(train, valid, test)


def repeated(
    splits: Splits[Example], name: str, key: Callable[[Example], Hashable]
) -> Iterator[str]:
    """Say how many examples of the other splits are trained on."""
    trained_on = {key(example) for example in splits.train}
    for split, examples in (("valid", splits.valid), ("test", splits.test)):
        if n_repeated := sum(key(example) in trained_on for example in examples):
            yield (
                f"{split}: {n_repeated:,} of {len(examples):,} {name} are in the training data "
                f"too, so their scores measure memory as well"
            )


def _settings(name: str, prefix: str = "") -> str:
    """The settings that name the files of a split."""
    two_files = f", or {prefix}source and {prefix}target" if name == "pairs" else ""
    return f"{prefix}{name}{two_files}"


def _hold_out(
    examples: list[Example],
    name: str,
    size: int,
    seed: int,
    key: Callable[[Example], Hashable],
    labels: Callable[[Example], Collection[Hashable]],
) -> tuple[list[Example], list[Example]]:
    keys = [key(example) for example in examples]
    keyed, valid = list(zip(examples, keys, strict=True)), _settings(name, "valid_")
    held_out = _draw_keys(keys, min(size, len(keys) // 10), seed)
    taught = {label for example, k in keyed if k not in held_out for label in labels(example)}
    rare = {k for example, k in keyed if not taught.issuperset(labels(example))}
    if held_out and held_out <= rare:
        raise UserError(
            f"data: no example can be held out for validation, because each has a label of its "
            f"own; read labels from the right column, or give {valid}."
        )
    held_out -= rare
    if not held_out:
        raise UserError(
            f"data: {len(keys):,} {name} are too few, or too alike, to hold a tenth out for "
            f"validation; give {valid}."
        )
    train = [example for example, k in keyed if k not in held_out]
    return train, [example for example, k in keyed if k in held_out]


def _draw_keys(keys: list[Hashable], size: int, seed: int) -> set[Hashable]:
    """Draw distinct keys at random that together occur `size` times at the most."""
    counts = Counter(keys)
    distinct = list(counts)
    drawn: set[Hashable] = set()
    for index in np.random.default_rng(seed).permutation(len(distinct)):
        if size == 0:
            break
        if counts[distinct[index]] <= size:
            drawn.add(distinct[index])
            size -= counts[distinct[index]]
    return drawn


def draw_examples(
    examples: list[Example], size: int, seed: int, kind: Callable[[Example], Hashable]
) -> list[Example]:
    """Draw `size` of the examples at random, as many of each kind as can be; 0 draws all.

    A larger draw with the same seed holds the smaller one, so that curves over sizes are
    comparable.
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
