"""One head is worse at several lookups by the same rules, and the verdict reads the figures."""

import torch

from qkv_labs import heads as lab
from qkv_labs.heads import Lookup, Measured
from qkv_labs.heads.roles import NO_ROLE, ORDERS, HeadRole, Silenced


def made_up(alone: float, many: float, control: float, silent: int = 2) -> Measured:
    lookups = [
        Lookup(relations, heads, 100, [value - 1, value + 1])
        for relations, first, later in ((1, 90.0, 90.0 + control), (4, alone, many))
        for heads, value in zip(lab.HEADS, (first, *[later] * 4), strict=True)
    ]
    heads = [HeadRole("encoder 0 self", head, NO_ROLE, 0.2, 0.1, 0.1, 90.0) for head in range(4)]
    curve = [
        Silenced(order, count, 99.0, 98.0 if count <= silent else 40.0)
        for order in ORDERS
        for count in range(5)
    ]
    return Measured(lookups, heads, curve, 10)


def test_the_answers_are_the_symbols_so_many_places_before() -> None:
    symbols = torch.randint(16, (3, lab.LENGTH))
    wanted = lab.answers(symbols, 4)
    for place in range(lab.LENGTH):
        for number, offset in enumerate(lab.OFFSETS[4]):
            assert wanted[:, place, number].equal(symbols[:, (place - offset) % lab.LENGTH])


def test_every_number_of_heads_has_the_same_parameters_and_untrained_ones_guess() -> None:
    runs = [lab.look_up(4, heads, seed=0, steps=1) for heads in lab.HEADS]
    assert len({size for _, size in runs}) == 1
    assert all(right < 15 for right, _ in runs)  # chance is 6.25
    assert lab.look_up(4, 2, seed=0, steps=1) == runs[1]


def test_one_head_learns_one_lookup_better_than_four_at_once() -> None:
    single, several = (lab.look_up(relations, 1, 0, 120)[0] for relations in (1, 4))
    assert single > several + 20


def test_spared_heads_cost_no_more_than_was_said() -> None:
    measured = made_up(50, 99, 0, silent=3)
    assert lab.spared(measured, 0.99) == lab.spared(measured, 0.95) == 3
    assert lab.spared(measured, 0.4) == 4
    assert lab.spared(made_up(50, 99, 0, silent=0), 0.99) == 0
