"""Which items form which batch: pure functions of the items' sizes, the seed and the epoch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from qkv.data.batch import PackedShape, round_up
from qkv.data.ragged import Indices

if TYPE_CHECKING:
    from qkv.data.items.base import Items

SORTED_TOGETHER = 65_536
"""Items sorted by length at a time: more pad less, fewer mix a large corpus better."""
BUCKET_GROWTH = 1.15
"""How much longer the targets of the next bucket are: 1.1 to 1.2 pads least at 2k to 16k tokens."""
LOOK_AHEAD = 128
"""Items ahead among which a packed batch looks for those that fill its last positions."""
ROUNDS = 8  # of the Feistel network; four are random enough for large sizes, small ones need more
Words = npt.NDArray[np.uint64]


def is_even(items: Items) -> bool:
    """Whether all items have one size, so that batches of equally many have one shape."""
    sizes = items.target_sizes
    return bool(sizes.min() == sizes.max()) and not items.source_sizes.any()


def padded_plan(items: Items, batch_tokens: int, seed: int, epoch: int) -> list[Indices]:
    """Cut an epoch into batches of similar length within the budget, in random order."""
    random = _random(seed, epoch)
    order = random.permutation(len(items))
    plan: list[Indices] = []
    for start in range(0, len(order), SORTED_TOGETHER):
        # A stable sort leaves items of the same lengths in their shuffled order.
        chunk = _by_length(items, order[start : start + SORTED_TOGETHER])
        plan += _cut(items, chunk, batch_tokens)
    return [plan[index] for index in random.permutation(len(plan))]


def validation_plan(items: Items, batch_tokens: int) -> list[Indices]:
    """Cut all items into batches of similar length in a fixed order."""
    order = np.arange(len(items))
    return _cut(items, order if is_even(items) else _by_length(items, order), batch_tokens)


def packed_shape(items: Items, batch_tokens: int, longest: int = 0) -> PackedShape:
    """Choose the one shape that packed batches of these items have, none over `longest`."""
    source, target = items.source_sizes, items.target_sizes
    # No rounding: filler is cut to this length, and must fit a model as long as the text.
    longest = longest or int(max(source.max(), target.max()))
    target_tokens = round_up(max(batch_tokens, longest), 128)
    # Half a percent of headroom fills both sides best: what does not fit is chosen around.
    expected = 1.005 * target_tokens * source.sum() / target.sum()
    source_tokens = round_up(max(math.ceil(expected), longest), 128) if source.any() else 0
    # Short items may come together: a quarter more than the mean, or all of them the shortest.
    n_items = min(
        math.ceil(1.25 * target_tokens / target.mean()) + 16, target_tokens // int(target.min())
    )
    bare = PackedShape(source_tokens, target_tokens, n_items, longest)
    return replace(bare, sequences=round_up(n_items + bare.filler, 8))


def packed_plan(items: Items, shape: PackedShape, seed: int, epoch: int) -> list[Indices]:
    """Cut an epoch into batches that fill a shape, from a random order with few moved up."""
    order = _random(seed, epoch).permutation(len(items))
    waiting = np.stack([order, items.source_sizes[order], items.target_sizes[order]])
    plan: list[Indices] = []
    start = 0
    while start < len(order):
        end = start + _fill(waiting[:, start : start + shape.capacity + LOOK_AHEAD], shape)
        plan.append(waiting[0, start:end].copy())
        start = end
    return plan


def share_shape(shape: PackedShape, n_shares: int) -> PackedShape:
    """Choose the one packed shape that each of `balanced_shares` of a batch fits."""
    tokens = [
        round_up(-(-size // n_shares) + shape.longest, 128) if size else 0
        for size in (shape.source_tokens, shape.target_tokens)
    ]
    n_items = -(-shape.capacity // n_shares)
    bare = PackedShape(tokens[0], tokens[1], n_items, shape.longest)
    return replace(bare, sequences=round_up(n_items + bare.filler, 8))


def balanced_shares(source: Indices, target: Indices, n_shares: int) -> Indices:
    """Return which share each item of a batch goes to, by the sizes of its two sides.

    Items are dealt out by falling target size, in rounds of one for each share, so that the targets
    of two shares differ by the longest one at most. In a round, the longest source goes to the
    share that has the least so far, so that sources differ by the longest one at most, too.
    """
    owner = np.zeros(len(target), np.int64)
    dealt = source if source.any() else target
    loads = np.zeros(n_shares, np.int64)
    order = np.argsort(-target, kind="stable")
    for start in range(0, len(order), n_shares):
        items = order[start : start + n_shares]
        items = items[np.argsort(-dealt[items], kind="stable")]
        shares = np.argsort(loads, kind="stable")[: len(items)]
        owner[items] = shares
        loads[shares] += dealt[items]
    return owner


def even_batch(n_items: int, rows: int, seed: int, number: int) -> Indices:
    """Return the items of batch `number` where all have one size: epochs laid end to end.

    Indices count on from epoch to epoch: epoch · n_items + item.
    """
    index = np.arange(number * rows, (number + 1) * rows)
    epochs, turns = np.divmod(index, n_items)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        turns[here] = permuted(turns[here], n_items, seed, int(epoch))
    return epochs * n_items + turns


def permuted(indices: Indices, size: int, seed: int, epoch: int) -> Indices:
    """Return where indices go in a random permutation of range(size), computed when asked for.

    A Feistel network permutes the numbers of an even count of bits, at most 4·size of them. One
    that lands outside of the range goes on from there until it is back: that too is one to one.
    """
    if ((indices < 0) | (indices >= size)).any():
        raise ValueError(f"an index is outside of range({size})")
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch,))
    keys = sequence.generate_state(ROUNDS, np.uint64).astype(np.uint64)
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    result = _network(indices.astype(np.uint64), half, keys)
    while (outside := result >= size).any():
        result[outside] = _network(result[outside], half, keys)
    return result.astype(np.int64)


def _network(numbers: Words, half: np.uint64, keys: Words) -> Words:
    """In each round, add to the left half a hash of the right one, and swap them."""
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


def _fill(waiting: npt.NDArray[np.int64], shape: PackedShape) -> int:
    """Move items that fill a batch to the front of `waiting` (index, sizes), and count them."""
    source, target = np.cumsum(waiting[1:, : shape.capacity], axis=1)
    count = int(((source <= shape.source_tokens) & (target <= shape.target_tokens)).sum())
    if not count:
        raise ValueError(f"an item of sizes {waiting[1:, 0]} overflows {shape}")
    ahead = waiting[:, count : count + LOOK_AHEAD]
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
    """Choose columns for the room that is left, the longest target that fits first."""
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


def _by_length(items: Items, order: Indices) -> Indices:
    """Sort into buckets of similar target length and, in each, by source length."""
    source, target = items.source_sizes[order], items.target_sizes[order]
    if not source.any():
        return order[np.argsort(target, kind="stable")]
    bucket = np.floor(np.log(target) / np.log(BUCKET_GROWTH)).astype(np.int64)
    # Up and down by turns, so that the sources on both sides of a bucket's end are alike.
    return order[np.lexsort((np.where(bucket % 2, source, -source), bucket))]


def _cut(items: Items, order: Indices, batch_tokens: int) -> list[Indices]:
    """Cut an order into batches whose rows times width stay within the budget on both sides."""
    widths = np.maximum(items.source_sizes[order], items.target_sizes[order])
    shortest = max(1, int(widths.min(initial=batch_tokens)))
    reach = batch_tokens // shortest + 1  # no batch has more rows
    rows = np.arange(1, reach + 1)
    cuts: list[int] = []
    start = 0
    while start < len(order):
        widest = np.maximum.accumulate(widths[start : start + reach])
        over = np.flatnonzero(widest * rows[: len(widest)] > batch_tokens)
        start += max(1, int(over[0])) if len(over) else len(widest)
        cuts.append(start)
    return np.split(order, cuts[:-1])
