"""One head is worse at several lookups by the same rules, and the verdict reads the figures."""

import torch

from qkv_labs import heads as lab


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
    exact = (100.0, 99.0, 98.0, 50.0)
    curve = [lab.Silenced(lab.ORDERS[0], count, 99.0, left) for count, left in enumerate(exact)]
    measured = lab.Measured([], [], curve, 10)
    assert [lab.spared(measured, kept) for kept in (1, 0.99, 0.95, 0.4)] == [0, 1, 2, 3]
