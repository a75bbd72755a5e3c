from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import PackedShape, PairItems
from qkv.data.order import (
    balanced_shares,
    packed_plan,
    packed_shape,
    padded_plan,
    permuted,
    share_shape,
    validation_plan,
)
from qkv.data.ragged import Indices
from tests.data.helpers import of_lengths

MakePairs = Callable[..., PairItems]
LENGTHS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=200)
BUDGETS = st.integers(1, 300)


def check_padded(plan: list[Indices], pairs: PairItems, budget: int) -> None:
    """Every pair once, and no batch over the budget but where a pair alone is."""
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(pairs)))
    for indices in plan:
        for sizes in (pairs.source_sizes, pairs.target_sizes):
            assert len(indices) == 1 or len(indices) * sizes[indices].max() <= budget


@settings(deadline=None)
@given(LENGTHS, BUDGETS, st.integers(0, 3))
def test_a_padded_plan_holds_each_pair_once_within_the_budget(
    lengths: list[tuple[int, int]], budget: int, epoch: int
) -> None:
    pairs = of_lengths(*lengths)
    check_padded(padded_plan(pairs, budget, 0, epoch), pairs, budget)
    check_padded(validation_plan(pairs, budget), pairs, budget)


@settings(deadline=None)
@given(LENGTHS, BUDGETS, st.integers(0, 3))
def test_a_packed_plan_holds_each_pair_once_within_the_shape(
    lengths: list[tuple[int, int]], budget: int, epoch: int
) -> None:
    pairs = of_lengths(*lengths)
    shape = packed_shape(pairs, budget)
    plan = packed_plan(pairs, shape, 0, epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(pairs)))
    for indices in plan:
        assert pairs.source_sizes[indices].sum() <= shape.source_tokens
        assert pairs.target_sizes[indices].sum() <= shape.target_tokens
        assert len(indices) <= shape.capacity


@pytest.mark.parametrize("budget", [2048, 8192])
def test_packing_leaves_little_empty(make_pairs: MakePairs, budget: int) -> None:
    pairs = make_pairs(20_000)
    shape = packed_shape(pairs, budget)
    whole = packed_plan(pairs, shape, 0, 0)[:-1]  # the last has what is left
    real = np.concatenate(whole)
    assert pairs.target_sizes[real].sum() / (len(whole) * shape.target_tokens) > 0.98
    assert pairs.source_sizes[real].sum() / (len(whole) * shape.source_tokens) > 0.95


def test_short_pairs_stop_at_the_number_of_segments() -> None:
    shape = PackedShape(source_tokens=64, target_tokens=64, sequences=9, longest=16)
    plan = packed_plan(of_lengths(*[(1, 1)] * 12), shape, 0, 0)
    assert [len(batch) for batch in plan] == [5, 5, 2]  # four more for filler


def test_short_and_long_batches_come_mixed(make_pairs: MakePairs) -> None:
    pairs = make_pairs(5000)
    widths = [pairs.target_sizes[batch].max() for batch in padded_plan(pairs, 512, 0, 0)]
    trend = np.corrcoef(widths, np.arange(len(widths)))[0, 1]
    assert abs(trend) < 0.3


def test_bucketing_pads_little(make_pairs: MakePairs) -> None:
    pairs = make_pairs(20_000)
    plan = padded_plan(pairs, 2048, 0, 0)
    padded = sum(
        len(batch) * int(pairs.target_sizes[batch].max() + pairs.source_sizes[batch].max())
        for batch in plan
    )
    assert (pairs.source_sizes.sum() + pairs.target_sizes.sum()) / padded > 0.9


def test_the_shape_is_round_and_has_room_for_the_longest(make_pairs: MakePairs) -> None:
    pairs = make_pairs(2000)
    shape = packed_shape(pairs, 1000)
    assert shape.target_tokens == 1024
    assert shape.source_tokens % 128 == 0
    assert shape.longest == int(max(pairs.source_sizes.max(), pairs.target_sizes.max()))
    assert shape.capacity + shape.filler == shape.sequences
    long = packed_shape(of_lengths((300, 2), (2, 500)), 10)
    assert (long.longest, long.target_tokens, long.source_tokens) == (501, 512, 512)


def test_a_pair_that_fits_no_batch_is_refused() -> None:
    shape = PackedShape(source_tokens=8, target_tokens=8, sequences=4, longest=8)
    with pytest.raises(ValueError, match="overflows"):
        packed_plan(of_lengths((9, 1)), shape, 0, 0)


def test_validation_goes_from_short_to_long(make_pairs: MakePairs) -> None:
    pairs = make_pairs(500)
    longest = [pairs.target_sizes[batch].max() for batch in validation_plan(pairs, 512)]
    assert longest[0] == min(longest)
    assert longest[-1] == max(longest) == pairs.target_sizes.max()


@settings(deadline=None)
@given(LENGTHS, BUDGETS, st.integers(1, 9))
def test_shares_of_a_batch_are_balanced_and_fit_one_shape(
    lengths: list[tuple[int, int]], budget: int, n_shares: int
) -> None:
    pairs = of_lengths(*lengths)
    shape = packed_shape(pairs, budget)
    small = share_shape(shape, n_shares)
    for indices in packed_plan(pairs, shape, 0, 0):
        sizes = pairs.source_sizes[indices], pairs.target_sizes[indices]
        owner = balanced_shares(*sizes, n_shares)
        counts = np.bincount(owner, minlength=n_shares)
        assert counts.sum() == len(indices)
        assert counts.max() - counts.min() <= 1
        for side in sizes:
            totals = np.bincount(owner, side, n_shares)
            assert totals.max() - totals.min() <= side.max()
        for share in range(n_shares):
            if counts[share]:
                pairs.batch(indices[owner == share], shape=small)  # raises where it overflows


# The order of items alone

SIZES = [*range(1, 70), 127, 128, 129, 255, 256, 257, 1000, 4096, 5003]


def order(size: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return permuted(np.arange(size), size, seed, epoch).tolist()


@pytest.mark.parametrize("size", SIZES)
def test_every_index_comes_once(size: int) -> None:
    assert sorted(order(size)) == list(range(size))


@given(st.integers(1, 2**62), st.integers(0, 2**40), st.integers(0, 2**40), st.data())
def test_any_size_stays_in_its_range_and_keeps_indices_apart(
    size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    found = permuted(np.array(indices), size, seed, epoch)
    assert found.dtype == np.int64
    assert ((found >= 0) & (found < size)).all()
    assert len(set(found.tolist())) == len(indices)


def test_it_depends_on_nothing_but_its_arguments() -> None:
    whole = order(1000, seed=5, epoch=2)
    assert permuted(np.array([7, 3, 7]), 1000, 5, 2).tolist() == [whole[7], whole[3], whole[7]]


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = {tuple(order(50, seed, epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13, 40])
def test_each_index_goes_everywhere_equally_often(size: int) -> None:
    n_orders = 1000
    counts = np.zeros((size, size))
    for epoch in range(n_orders):
        counts[np.arange(size), order(size, seed=1, epoch=epoch)] += 1
    expected = n_orders / size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (size - 1) ** 2
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_neighbours_do_not_stay_together() -> None:
    """In a random order of n, a step of +1 comes about once; a weak network would keep runs."""
    steps = [np.diff(order(1000, seed)) for seed in range(50)]
    assert np.mean([(step == 1).sum() for step in steps]) < 2
    assert abs(np.mean([abs(step).mean() for step in steps]) - 1001 / 3) < 10


def test_an_index_outside_is_refused() -> None:
    for index in (5, -1):
        with pytest.raises(ValueError, match=r"outside of range\(5\)"):
            permuted(np.array([0, index]), 5, 0, 0)
