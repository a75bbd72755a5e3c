"""Batches for inference: every row once, within the budget, with little padding."""

from hypothesis import given
from hypothesis import strategies as st

from qkv.batching import batches, pad_rows

SIZES = st.lists(st.integers(0, 50), max_size=30)


@given(sizes=SIZES, budget=st.integers(1, 200), most=st.sampled_from([1.0, 0.25, 1 / 32]))
def test_batches_hold_every_row_within_the_budget(sizes, budget, most):
    found = list(batches(sizes, budget, most))
    assert sorted(row for rows in found for row in rows) == list(range(len(sizes)))
    in_order = [sizes[row] for rows in found for row in rows]
    assert in_order == sorted(sizes, reverse=True)
    for rows in found:
        widths = [sizes[row] for row in rows]
        if len(rows) > 1:
            assert len(rows) * max(widths) <= budget
            assert sum(max(widths) - width for width in widths) <= most * budget


@given(sizes=SIZES, budget=st.integers(1, 200))
def test_batches_are_as_large_as_the_budget_allows(sizes, budget):
    found = list(batches(sizes, budget))
    for rows in found[:-1]:
        assert (len(rows) + 1) * max(sizes[row] for row in rows) > budget


@given(rows=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5))
def test_rows_are_filled_up_at_their_ends(rows):
    table = pad_rows(rows, value=-1)
    width = max(map(len, rows))
    assert table.tolist() == [[*row, *[-1] * (width - len(row))] for row in rows]
