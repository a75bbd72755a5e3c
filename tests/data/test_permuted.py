import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.order import permuted

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
