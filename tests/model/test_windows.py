"""Windows: how far back a layer looks, in which layers, and that all else stays as it was."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import preset
from qkv.model import Decoder, Mask, Order, Stack, equation, fast, use_path
from tests.model.tiny import assert_paths_agree, assert_same, tiny_config, tiny_model, tokens

PATHS = pytest.mark.parametrize("path", [fast, equation])
LAYERS = pytest.mark.parametrize("window_layers", ["all", "alternate"])
KINDS = pytest.mark.parametrize(
    "choices",
    [{"positions": "learned"}, {"positions": "rotary", "n_kv_heads": 2}, {"n_kv_heads": 1}],
    ids=["learned", "rotary", "sinusoidal"],
)
LENGTH = 12


def decoder(**choices: object) -> Decoder:
    model = tiny_model(family="decoder", **choices)
    assert isinstance(model, Decoder)
    return model


def reach(model: Decoder) -> int:
    """How many tokens' logits a token at place 2 changes, itself counted."""
    row = tokens(1, LENGTH)
    other = row.clone()
    other[0, 2] = (row[0, 2] + 1) % 23
    changed = (model(row) - model(other)).abs().amax(dim=(0, 2)).gt(1e-9).nonzero().flatten()
    assert changed.tolist() == [*range(2, 2 + len(changed))]
    return len(changed)


@PATHS
@KINDS
@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("layers", [1, 2, 3])
@torch.no_grad()
def test_each_layer_looks_one_window_further(path, choices, window, layers):
    model = decoder(window=window, n_decoder_layers=layers, **choices)
    with use_path(model, path):
        assert reach(model) == min(1 + layers * (window - 1), LENGTH - 2)


@PATHS
@torch.no_grad()
def test_alternate_layers_begin_with_one_that_sees_all(path):
    model = decoder(n_decoder_layers=2, window=2, window_layers="alternate", positions="rotary")
    with use_path(model, path):
        assert reach(model) == LENGTH - 2
        model.decoder.blocks[0].self_attention.output.weight.zero_()  # silence what sees all
        assert reach(model) == 2


def test_windows_of_layers():
    def windows(**choices: object) -> list[int]:
        return Stack(tiny_config(window=5, **choices), n_layers=5, causal=True).windows

    assert windows() == [5, 5, 5, 5, 5]
    assert windows(window_layers="alternate") == [0, 5, 0, 5, 0]
    assert [preset("gpt3").window_of(layer) for layer in range(4)] == [0, 256, 0, 256]


@PATHS
@LAYERS
@torch.no_grad()
def test_a_stack_is_its_blocks_each_with_its_own_mask(path, window_layers):
    choices = {"window": 3, "window_layers": window_layers, "positions": "rotary"}
    model = decoder(n_decoder_layers=4, norm_position="pre", **choices)
    row, stack = tokens(2, LENGTH), model.decoder
    x, order = model.embedding(row), Order.of(stack.positions, torch.arange(LENGTH))
    for layer, block in enumerate(stack.blocks):
        looks_back = 3 if window_layers == "all" or layer in (1, 3) else LENGTH
        seen = [[i - looks_back < j <= i for j in range(LENGTH)] for i in range(LENGTH)]
        x = block(x, Mask(causal=True, window=1, drawn=torch.tensor(seen)[None, None]), order)
    with use_path(model, path):
        assert_same(model.hidden(row), stack.norm(x))


@PATHS
@KINDS
@LAYERS
@torch.no_grad()
def test_a_window_as_long_as_the_text_hides_nothing(path, choices, window_layers):
    wide = decoder(window=LENGTH, window_layers=window_layers, **choices)
    none = decoder(**choices)
    none.load_state_dict(wide.state_dict())
    row = tokens(2, LENGTH)
    with use_path(wide, path), use_path(none, path):
        assert_same(wide(row), none(row))


@torch.no_grad()
def test_windows_are_for_self_attention_of_one_stack():
    """A source is seen whole, by its encoder and its decoder; an encoder alone has two sides."""
    narrow, full = tiny_model(window=1), tiny_model()
    full.load_state_dict(narrow.state_dict())
    source, target = tokens(2, 6), tokens(2, 1)
    assert_same(narrow.encode(source), full.encode(source))
    assert_same(narrow(source, target), full(source, target))  # one token sees itself either way
    longer = tokens(2, 4)
    assert not torch.allclose(narrow(source, longer), full(source, longer))
    encoder = tiny_model(family="encoder", window=2)  # two layers of it reach two tokens away
    long = tokens(2, 9)
    other = long.clone()
    other[:, 4] = (long[:, 4] + 1) % 23
    changed = (encoder(long) - encoder(other)).abs().amax(dim=(0, 2)) > 1e-9
    assert changed.tolist() == [False, False, *[True] * 5, False, False]


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 4]))
def test_the_paths_are_one_function(window, length, kv_heads):
    """Forward and backward, with key/value heads that several query heads share."""
    model = decoder(window=window, window_layers="alternate", n_kv_heads=kv_heads)
    row = tokens(2, length)
    assert_paths_agree(model, lambda: model(row))
