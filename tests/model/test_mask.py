"""What may be seen, drawn and compared with pictures made by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.model import Layout, Mask, cross_mask, self_mask
from qkv.model.attention import weights
from tests.model.reference import Case, cases, sees

CPU = torch.device("cpu")


def draw(mask: Mask, n_queries: int, n_keys: int, row: int = 0) -> list[str]:
    """One line a query, with x where it sees a key."""
    drawn = mask.boolean(n_queries, n_keys, CPU)[row, 0]
    return ["".join("x" if seen else "." for seen in line) for line in drawn.tolist()]


def test_plain():
    assert draw(Mask(), 2, 3) == ["xxx", "xxx"]
    assert draw(Mask(causal=True), 4, 4) == ["x...", "xx..", "xxx.", "xxxx"]


def test_padding():
    mask = self_mask(Layout(lengths=torch.tensor([3, 1, 0])), causal=False)
    assert [draw(mask, 2, 3, row) for row in range(3)] == [
        ["xxx", "xxx"],
        ["x..", "x.."],
        ["...", "..."],
    ]


def test_padding_and_causal_together():
    mask = Mask(causal=True, key_lengths=torch.tensor([2]))
    assert draw(mask, 4, 4) == ["x...", "xx..", "xx..", "xx.."]


def test_causal_rows_need_no_lengths():
    """Padding stands at the end, where no real token looks; so a kernel's causal flag will do."""
    mask = self_mask(Layout(lengths=torch.tensor([2, 3])), causal=True)
    assert mask.only_causal
    padded = Mask(causal=True, key_lengths=torch.tensor([2, 3]))
    for row, length in enumerate([2, 3]):
        assert draw(mask, 3, 3)[:length] == draw(padded, 3, 3, row)[:length]


def test_packed():
    layout = Layout(offsets=torch.tensor([0, 2, 3, 5]))
    assert draw(self_mask(layout, causal=False), 5, 5) == [
        "xx...",
        "xx...",
        "..x..",
        "...xx",
        "...xx",
    ]
    assert draw(self_mask(layout, causal=True), 5, 5) == [
        "x....",
        "xx...",
        "..x..",
        "...x.",
        "...xx",
    ]


def test_packed_targets_see_their_own_sources():
    mask = cross_mask(
        Layout(offsets=torch.tensor([0, 1, 3, 4])), Layout(offsets=torch.tensor([0, 2, 2, 5]))
    )
    assert draw(mask, 4, 5) == ["xx...", ".....", ".....", "..xxx"]


def test_padded_targets_see_their_own_sources():
    mask = cross_mask(Layout(lengths=torch.tensor([1, 2])), Layout(lengths=torch.tensor([2, 3])))
    assert [draw(mask, 2, 3, row) for row in (0, 1)] == [["xx.", "xx."], ["xxx", "xxx"]]


def test_sides_are_packed_together_or_not_at_all():
    packed, padded = Layout(offsets=torch.tensor([0, 2])), Layout(lengths=torch.tensor([2]))
    for queries, keys in ((packed, padded), (padded, packed), (Layout(), packed)):
        with pytest.raises(ValueError, match="packed"):
            cross_mask(queries, keys)
    assert cross_mask(packed, packed).packed
    assert not cross_mask(padded, padded).packed


def test_window():
    assert draw(Mask(causal=True, window=2), 4, 4) == ["x...", "xx..", ".xx.", "..xx"]
    assert draw(Mask(window=2), 3, 4) == ["xx..", "xxx.", ".xxx"]
    packed = self_mask(Layout(offsets=torch.tensor([0, 1, 4])), causal=True, window=2)
    assert draw(packed, 4, 4) == ["x...", ".x..", ".xx.", "..xx"]


@pytest.mark.parametrize("start", [2, torch.tensor(2)])
def test_start(start):
    assert draw(Mask(causal=True, start=start), 2, 5) == ["xxx..", "xxxx."]
    assert draw(Mask(causal=True, start=start, window=2), 2, 5) == [".xx..", "..xx."]


def test_padding_in_front():
    mask = self_mask(Layout(first=torch.tensor([[0], [2]])), causal=True)
    assert draw(mask, 4, 4, row=0) == ["x...", "xx..", "xxx.", "xxxx"]
    assert draw(mask, 4, 4, row=1) == ["....", "....", "..x.", "..xx"]


def test_sequences_in_rows():
    first = torch.tensor([[0, 0, 2, 2, 2], [0, 1, 1, 1, 4]])
    mask = self_mask(Layout(first=first), causal=True)
    assert draw(mask, 5, 5, row=0) == ["x....", "xx...", "..x..", "..xx.", "..xxx"]
    assert draw(mask, 5, 5, row=1) == ["x....", ".x...", ".xx..", ".xxx.", "....x"]
    narrow = self_mask(Layout(first=first), causal=True, window=2)
    assert draw(narrow, 5, 5, row=0) == ["x....", "xx...", "..x..", "..xx.", "...xx"]


@given(st.data(), st.integers(1, 3), st.integers(1, 6), st.integers(0, 4), st.integers(0, 3))
def test_no_query_sees_what_stands_before_its_own_sequence(data, rows, new, start, window):
    """The mask with `first` is the mask without, less every key before it."""
    n_keys, columns = start + new, data.draw(st.sampled_from([1, new]))
    drawn = data.draw(st.lists(st.integers(0, n_keys), min_size=rows * columns, max_size=99))
    first = torch.tensor(drawn[: rows * columns]).reshape(rows, columns)
    plain = Mask(causal=True, start=start, window=window)
    found = Mask(causal=True, start=start, window=window, first=first).boolean(new, n_keys, CPU)
    assert found.shape == (rows, 1, new, n_keys)
    for row, query, key in torch.cartesian_prod(*map(torch.arange, (rows, new, n_keys))).tolist():
        begins = first[row, query if columns > 1 else 0]
        expected = plain.boolean(new, n_keys, CPU)[0, 0, query, key] and key >= begins
        assert found[row, 0, query, key] == expected


@pytest.mark.parametrize(
    "mask",
    [
        Mask(causal=True, first=torch.tensor([[1], [0]])),
        Mask(causal=True, first=torch.tensor([[0, 0, 2], [0, 1, 1]])),
        Mask(causal=True, window=2),
        Mask(causal=True, start=1),
        Mask(key_lengths=torch.tensor([1, 3])),
    ],
    ids=["front", "rows", "window", "start", "padding"],
)
def test_drawn_once_is_drawn_each_time(mask):
    once = mask.draw(3, 3, CPU)
    assert once.drawn is not None and once.boolean(3, 3, CPU) is once.drawn
    expected = mask.boolean(3, 3, CPU)
    assert torch.equal(once.boolean(3, 3, CPU).expand_as(expected), expected)
    flags = ("causal", "packed", "hides_nothing", "only_causal", "may_be_blind")
    assert all(getattr(once, flag) == getattr(mask, flag) for flag in flags)


def test_what_kernels_know_by_flags_stays_undrawn():
    offsets = torch.tensor([0, 3], dtype=torch.int32)
    for mask in (Mask(), Mask(causal=True), self_mask(Layout(offsets=offsets), causal=True)):
        assert mask.draw(3, 3, CPU) is mask


@given(cases())
def test_boolean_is_the_rule(case: Case):
    drawn = case.mask.boolean(case.n_queries, case.n_keys, CPU)
    assert drawn.dtype == torch.bool
    for row, grid in enumerate(drawn[:, 0].tolist()):
        for i, line in enumerate(grid):
            assert line == [sees(case.mask, row, i, j) for j in range(case.n_keys)]


@given(cases())
def test_boolean_and_additive_give_the_same_weights(case: Case):
    """Masked scores set to -∞, or -∞ added to them: the notes' two forms."""
    size = (case.n_queries, case.n_keys)
    scores = torch.randn(case.batch, 2, *size, dtype=torch.float64)
    visible = case.mask.boolean(*size, CPU)
    added = weights(scores + case.mask.additive(*size, CPU, torch.float64))
    assert torch.equal(added, weights(scores.masked_fill(~visible, float("-inf"))))
    assert (added[(~visible).expand_as(added)] == 0).all()
    sums = visible.any(-1).expand(added.shape[:-1]).double()
    torch.testing.assert_close(added.sum(-1), sums, atol=1e-12, rtol=0)


@given(cases())
def test_additive_is_zero_or_minus_infinity(case: Case):
    size = (case.n_queries, case.n_keys)
    added = case.mask.additive(*size, CPU, torch.bfloat16)
    assert added.dtype == torch.bfloat16
    visible = case.mask.boolean(*size, CPU)
    assert (added[visible] == 0).all()
    assert added[~visible].isneginf().all()


@given(cases())
def test_flags_say_what_is_drawn(case: Case):
    """A kernel that is told by flags sees what a kernel that is handed the drawing sees."""
    drawn = case.mask.boolean(case.n_queries, case.n_keys, CPU)
    if case.mask.hides_nothing:
        assert drawn.all()
    if case.mask.only_causal:
        assert torch.equal(drawn[0, 0], torch.ones_like(drawn[0, 0]).tril())
    its_own_key_is_there = int(case.mask.start) + case.n_queries <= case.n_keys
    if its_own_key_is_there and not case.mask.may_be_blind:
        assert drawn.any(dim=-1).all()


def test_flags():
    lengths, offsets = torch.tensor([1]), torch.tensor([0, 1])
    assert Mask().hides_nothing and Mask(start=3).hides_nothing
    assert Mask(causal=True).only_causal
    for mask in (
        Mask(causal=True, window=2),
        Mask(causal=True, key_lengths=lengths),
        Mask(causal=True, query_offsets=offsets, key_offsets=offsets),
        Mask(causal=True, start=1),
        Mask(causal=True, start=torch.tensor(0)),
        Mask(causal=True, first=torch.tensor([[0]])),
    ):
        assert not mask.only_causal and not mask.hides_nothing
    assert not Mask(window=1).hides_nothing and not Mask(key_lengths=lengths).hides_nothing
    assert Mask(causal=True, first=torch.tensor([[1]])).may_be_blind
    assert not Mask(causal=True, window=1).may_be_blind


def test_positions_restart_in_each_packed_sequence():
    layout = Layout(offsets=torch.tensor([0, 3, 3, 4, 6]))
    assert layout.positions(6, CPU).tolist() == [0, 1, 2, 0, 0, 1]
    assert Layout(lengths=torch.tensor([2, 3])).positions(3, CPU).tolist() == [0, 1, 2]
