"""A shuffled order without a list of it: where each index goes is computed when asked for."""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

from qkv.data.encoded import Indices

Words = npt.NDArray[np.uint64]
ROUNDS = 8  # four are random enough for large sizes; small ones need more


@overload
def permuted(index: int, size: int, seed: int, epoch: int) -> int: ...
@overload
def permuted(index: Indices, size: int, seed: int, epoch: int) -> Indices: ...
def permuted(index: Indices | int, size: int, seed: int, epoch: int) -> Indices | int:
    """Where indices go in a random order of range(size), one for each seed and epoch.

    A Feistel network permutes the numbers of an even count of bits, at most 4·size of them. Where
    one lands outside of the range it goes on from there until it is back: that too is one to one.
    """
    numbers = np.atleast_1d(np.asarray(index, np.int64))
    if ((numbers < 0) | (numbers >= size)).any():
        raise ValueError(f"an index is outside of range({size})")
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch,))
    keys = sequence.generate_state(ROUNDS, np.uint64).astype(np.uint64)
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    found = _network(numbers.astype(np.uint64), half, keys)
    while (outside := found >= size).any():
        found[outside] = _network(found[outside], half, keys)
    return int(found[0]) if isinstance(index, int) else found.astype(np.int64)


def _network(numbers: Words, half: np.uint64, keys: Words) -> Words:
    """Each round adds to the left half what a hash makes of the right one, and swaps them."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_hashed(right ^ key) & mask)
    return (left << half) | right


def _hashed(words: Words) -> Words:
    """Mix all 64 bits (the finaliser of SplitMix64: Steele, Lea and Flood 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
