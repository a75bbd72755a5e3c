"""Which pairs or examples form which batch: pure functions of data, seed and epoch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from qkv.data.batch import PackedShape, round_up
from qkv.data.encoded import Indices

SORTED_TOGETHER = 65_536
"""Pairs sorted by length at a time: more pad less, fewer mix a large corpus better."""
BUCKET_GROWTH = 1.15
"""How much longer the targets of the next bucket are: 1.1 to 1.2 pads least at 2k to 16k tokens."""
WINDOW = 128
"""Pairs ahead among which a packed batch looks for those that fill its last places."""


class HasSizes(Protocol):
    """Pairs, or whatever else takes places on the two sides of a batch."""

    def __len__(self) -> int: ...

    @property
    def source_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each takes among the sources; all 0 where there are none."""

    @property
    def target_sizes(self) -> npt.NDArray[np.int64]:
        """Places that each takes among the targets."""


def padded_plan(pairs: HasSizes, batch_tokens: int, seed: int, epoch: int) -> list[Indices]:
    """Batches of pairs of like length, each within the budget on both sides, in random order."""
    random = _random(seed, epoch)
    order = random.permutation(len(pairs))
    plan: list[Indices] = []
    for start in range(0, len(order), SORTED_TOGETHER):
        # A stable sort leaves pairs of the same lengths in their shuffled order.
        chunk = _by_length(pairs, order[start : start + SORTED_TOGETHER])
        plan += _cut(pairs, chunk, batch_tokens)
    return [plan[index] for index in random.permutation(len(plan))]


def validation_plan(pairs: HasSizes, batch_tokens: int) -> list[Indices]:
    """Batches of pairs of like length in an order that never changes."""
    return _cut(pairs, _by_length(pairs, np.arange(len(pairs))), batch_tokens)


def packed_shape(pairs: HasSizes, batch_tokens: int) -> PackedShape:
    """Choose the one shape that packed batches of `pairs` shall have."""
    source, target = pairs.source_sizes, pairs.target_sizes
    # No rounding: filler is cut to this length, and must fit a model as long as the text.
    longest = int(max(source.max(), target.max()))
    target_tokens = round_up(max(batch_tokens, longest), 128)
    # Half a percent of headroom fills both sides best: what does not fit is chosen around.
    expected = 1.005 * target_tokens * source.sum() / target.sum()
    source_tokens = round_up(max(math.ceil(expected), longest), 128) if source.any() else 0
    # Short sentences may come together: a quarter more than the mean, or all of them the shortest.
    n_pairs = min(
        math.ceil(1.25 * target_tokens / target.mean()) + 16, target_tokens // int(target.min())
    )
    bare = PackedShape(source_tokens, target_tokens, n_pairs, longest)
    return replace(bare, sequences=round_up(n_pairs + bare.filler, 8))


def packed_plan(pairs: HasSizes, shape: PackedShape, seed: int, epoch: int) -> list[Indices]:
    """Batches that fill `shape`, from a random order in which few pairs move up a little."""
    order = _random(seed, epoch).permutation(len(pairs))
    waiting = np.stack([order, pairs.source_sizes[order], pairs.target_sizes[order]])
    plan: list[Indices] = []
    start = 0
    while start < len(order):
        end = start + _fill(waiting[:, start : start + shape.capacity + WINDOW], shape)
        plan.append(waiting[0, start:end].copy())
        start = end
    return plan


def _fill(waiting: npt.NDArray[np.int64], shape: PackedShape) -> int:
    """Move pairs that fill a batch to the front of `waiting` (index, sizes), and count them."""
    source, target = np.cumsum(waiting[1:, : shape.capacity], axis=1)
    count = int(((source <= shape.source_tokens) & (target <= shape.target_tokens)).sum())
    if not count:
        raise ValueError(f"a pair of sizes {waiting[1:, 0]} overflows {shape}")
    ahead = waiting[:, count : count + WINDOW]
    chosen = _best_fits(
        ahead,
        shape.source_tokens - int(source[count - 1]),
        shape.target_tokens - int(target[count - 1]),
        shape.capacity - count,
    )
    rest = np.delete(np.arange(ahead.shape[1]), chosen)
    ahead[:] = ahead[:, [*chosen, *rest]]
    return count + len(chosen)


def _best_fits(
    ahead: npt.NDArray[np.int64], source_room: int, target_room: int, most: int
) -> list[int]:
    """Choose columns for what room is left, the longest target that fits first."""
    _, source, target = ahead
    free = np.ones(len(target), bool)
    chosen: list[int] = []
    while len(chosen) < most:
        fits = free & (source <= source_room) & (target <= target_room)
        if not fits.any():
            break
        best = int(np.argmax(np.where(fits, target, 0)))
        free[best] = False
        chosen.append(best)
        source_room -= int(source[best])
        target_room -= int(target[best])
    return chosen


def _random(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,)))


def _by_length(pairs: HasSizes, order: Indices) -> Indices:
    """Sort into buckets of like target length and, in each, by source length."""
    source, target = pairs.source_sizes[order], pairs.target_sizes[order]
    if not source.any():
        return order[np.argsort(target, kind="stable")]
    bucket = np.floor(np.log(target) / np.log(BUCKET_GROWTH)).astype(np.int64)
    # Up and down by turns, so that the sources on both sides of a bucket's end are alike.
    return order[np.lexsort((np.where(bucket % 2, source, -source), bucket))]


def _cut(pairs: HasSizes, order: Indices, batch_tokens: int) -> list[Indices]:
    """Cut an order into batches whose rows times width stay within the budget on both sides."""
    widths = np.maximum(pairs.source_sizes, pairs.target_sizes)[order]
    cuts: list[int] = []
    start = widest = 0
    for position, width in enumerate(widths.tolist()):
        widest = max(widest, width)
        if position > start and (position + 1 - start) * widest > batch_tokens:
            cuts.append(position)
            start, widest = position, width
    return np.split(order, cuts)
