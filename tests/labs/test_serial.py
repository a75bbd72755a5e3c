"""Counts are those of the formulas, and all four ways say the same."""

import pytest
import torch

from qkv_labs import serial as lab
from qkv_labs.serial import AGAIN, CACHE, PREFIX, TRAIN, WAYS

SOURCE = torch.arange(4, 10)[None]


@pytest.mark.parametrize("way", WAYS)
def test_passes_positions_and_pairs_are_those_of_the_formulas(way: str) -> None:
    length, n_source = 7, SOURCE.shape[1]
    model = lab.build(0, length).double()
    target = torch.tensor([model.config.bos_id, *lab.with_cache(model, SOURCE, length)])[None]
    found = lab.count(way, length, model, lab.predict(way, model, SOURCE, target), 1.5)
    passes = (found.encoder_passes, found.decoder_passes, found.positions)
    assert passes == lab.expected(way, length)
    steps = range(1, length + 1)
    self_pairs = {
        TRAIN: length**2,
        CACHE: sum(steps),
        PREFIX: sum(t * t for t in steps),
        AGAIN: sum(t * t for t in steps),
    }[way]
    layers = 2
    encoded = found.encoder_passes * n_source**2
    assert found.pairs == layers * (self_pairs + found.positions * n_source + encoded)
    assert found.seconds == 1.5 and len(found.tokens) == length
    assert not model.encoder._forward_hooks and not model.decoder._forward_hooks


def test_all_ways_give_the_same_tokens_which_vary_and_depend_on_the_prefix() -> None:
    length = 40
    model = lab.build(0, length).double()
    tokens = lab.with_cache(model, SOURCE, length)
    assert len(set(tokens)) > 5
    assert not set(tokens) & set(lab.never(model.config))
    target = torch.tensor([model.config.bos_id, *tokens])[None]
    for way in WAYS:
        assert lab.predict(way, model, SOURCE, target)() == tokens
    changed = target.clone()
    changed[0, 3] = (changed[0, 3] + 1) % lab.N_TOKENS
    assert lab.at_once(model, SOURCE, changed[:, :-1]) != tokens


def test_learning_takes_a_step_back_and_leaves_no_gradient() -> None:
    model = lab.build(0, 4)
    seen: list[torch.Tensor] = []
    handle = model.output.projection.weight.register_hook(seen.append)
    lab.learn(model, SOURCE, torch.tensor([[2, 5, 6, 7]]))()
    handle.remove()
    assert len(seen) == 1 and seen[0].abs().sum() > 0
    assert all(weight.grad is None for weight in model.parameters())
