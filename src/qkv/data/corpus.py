"""The text of a run: what is trained on, validated with and, at the end, tested on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qkv.config import DataConfig
from qkv.data.readers import Pair, read_pairs
from qkv.errors import UserError


@dataclass(frozen=True)
class ParallelText:
    """Sentence pairs (source, target) in their three uses; `test` may be empty."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def read_parallel(config: DataConfig, seed: int = 0) -> ParallelText:
    """Read what `config` names, and cut a validation split off where it names none."""
    if config.corpus == "demo":
        return _read_demo(config)
    train = _read_split(config, "")
    if config.valid_source or config.valid_target or config.valid_pairs:
        valid = _read_split(config, "valid_")
    else:
        train, valid = _cut_off(train, config.valid_size, seed)
    tested = config.test_source or config.test_target or config.test_pairs
    return ParallelText(train, valid, _read_split(config, "test_") if tested else [])


def _read_demo(config: DataConfig) -> ParallelText:
    for prefix in ("", "valid_", "test_"):
        for name in ("source", "target", "pairs"):
            if getattr(config, prefix + name):
                raise UserError(
                    f"data: corpus = 'demo' brings its own text, but {prefix}{name} is given too; "
                    f"remove one of them."
                )
    # Imported here, for its grammar is of no use to any other corpus.
    from qkv.demo import demo_corpus

    corpus = demo_corpus()  # one held-out part for every run, whatever its seed
    return ParallelText(corpus.train, corpus.valid, corpus.test)


def _read_split(config: DataConfig, prefix: Literal["", "valid_", "test_"]) -> list[Pair]:
    return read_pairs(
        getattr(config, f"{prefix}source"),
        getattr(config, f"{prefix}target"),
        getattr(config, f"{prefix}pairs"),
        config.source_field,
        config.target_field,
        name=prefix,
    )


def _cut_off(pairs: list[Pair], size: int, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Part `pairs` into training and validation, all pairs of one source on the same side.

    Corpora repeat themselves: a validation sentence that is trained on as well measures memory.
    """
    held_out = draw_keys([source for source, _ in pairs], min(size, len(pairs) // 10), seed)
    if not held_out:
        raise UserError(
            f"data: {len(pairs)} pairs are too few, or too alike, to cut a tenth off for "
            f"validation; give valid_source and valid_target, or valid_pairs."
        )
    train = [pair for pair in pairs if pair[0] not in held_out]
    return train, [pair for pair in pairs if pair[0] in held_out]


def draw_keys(keys: list[str], size: int, seed: int) -> set[str]:
    """Draw distinct keys at random that together occur `size` times at the most."""
    counts = Counter(keys)
    distinct = list(counts)
    drawn: set[str] = set()
    left = size
    for index in np.random.default_rng(seed).permutation(len(distinct)):
        if left == 0:
            break
        if counts[distinct[index]] <= left:
            drawn.add(distinct[index])
            left -= counts[distinct[index]]
    return drawn
