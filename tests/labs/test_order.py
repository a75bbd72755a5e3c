"""Order: swapped sentences, brute force over all orders, and the verdicts."""

from __future__ import annotations

import pytest
import torch

from qkv_labs import order


def test_an_encoder_without_positions_gives_the_same_vectors_in_another_order() -> None:
    assert max(order.change(order.build("encoder", "none", 2))) < 1e-12


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative"])
def test_positions_of_every_kind_tell_orders_apart(positions: str) -> None:
    assert min(order.change(order.build("encoder", positions, 2))) > 1e-3


def test_a_causal_decoder_without_positions_tells_them_apart_from_the_second_layer_on() -> None:
    moved, pooled, stop = order.change(order.build("decoder", "none", 1))
    assert stop < 1e-12 < 1e-3 < min(moved, pooled)
    assert order.change(order.build("decoder", "none", 2))[2] > 1e-3


def test_relative_change_is_the_largest_share_of_a_vectors_length() -> None:
    a, b = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.5], [0.0, 1.0]])
    assert order.relative_change(a, b) == pytest.approx(0.1)


def test_no_pair_of_people_is_both_learnt_and_tested_and_every_sentence_has_its_mirror() -> None:
    learn, held_out = order.corpus(3)
    pairs = [{frozenset((s[0], s[2])) for s in part} for part in (learn, held_out)]
    assert not pairs[0] & pairs[1]
    assert len(pairs[0] | pairs[1]) == 14 * 13 / 2
    assert {s[2] + s[1] + s[0] + s[3] for s in held_out} == set(held_out)


def test_a_blind_model_is_right_on_exactly_half_and_a_seeing_one_on_more() -> None:
    """A sentence and its mirror look the same, so that one answer of two is right, at most."""
    assert order.accuracy("encoder", "none", 1, seed=0, steps=40) <= 0.5
    assert order.accuracy("encoder", "sinusoidal", 1, seed=0, steps=150) > 0.9
