"""What may be seen, drawn and compared with pictures made by hand."""

import pytest
import torch
from hypothesis import given

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
    assert draw(Mask(window=2), 3, 4) == ["xxxx", "xxxx", ".xxx"]
    packed = self_mask(Layout(offsets=torch.tensor([0, 1, 4])), causal=True, window=2)
    assert draw(packed, 4, 4) == ["x...", ".x..", ".xx.", "..xx"]


@pytest.mark.parametrize("start", [2, torch.tensor(2)])
def test_start(start):
    assert draw(Mask(causal=True, start=start), 2, 5) == ["xxx..", "xxxx."]
    assert draw(Mask(causal=True, start=start, window=2), 2, 5) == [".xx..", "..xx."]


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
    ):
        assert not mask.only_causal and not mask.hides_nothing
    assert not Mask(window=1).hides_nothing and not Mask(key_lengths=lengths).hides_nothing


def test_positions_restart_in_each_packed_sequence():
    layout = Layout(offsets=torch.tensor([0, 3, 3, 4, 6]))
    assert layout.positions(6, CPU).tolist() == [0, 1, 2, 0, 0, 1]
    assert Layout(lengths=torch.tensor([2, 3])).positions(3, CPU).tolist() == [0, 1, 2]
