"""Decoding step by step with a cache equals reading the whole text again at each step."""

import pytest
import torch
from torch import Tensor

from qkv.model import Cache, EncoderDecoder, Layout, equation, fast, use_path
from tests.model.tiny import assert_same, padded, sequences, tiny_model, tokens

pytestmark = pytest.mark.usefixtures("no_gradients")
PATHS = pytest.mark.parametrize("path", [fast, equation])
FIXED = pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
ROOM = 9  # more than any text here, so that a fixed cache has an end to hide


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


def empty(model, rows: int, fixed: bool) -> Cache:
    like = next(model.parameters())
    return Cache.empty(model.config, rows, ROOM, like, fixed)


def in_pieces(step, row: Tensor, sizes: list[int]) -> Tensor:
    """Feed tokens piece by piece and lay the outputs end to end."""
    assert sum(sizes) == row.shape[1]
    return torch.cat([step(piece) for piece in row.split(sizes, dim=1)], dim=1)


PIECES = pytest.mark.parametrize(
    "sizes", [[1] * 7, [4, 1, 1, 1], [7], [1, 3, 2, 1]], ids=["steps", "prefill", "whole", "mixed"]
)


@PATHS
@FIXED
@PIECES
@pytest.mark.parametrize(
    "choices", [{}, {"n_kv_heads": 2, "positions": "learned", "norm_position": "pre"}], ids=str
)
def test_decoder_with_cache(path, fixed, sizes, choices):
    model = tiny_model(family="decoder", **choices)
    row = tokens(3, 7)
    cache = empty(model, 3, fixed)
    with use_path(model, path):
        found = in_pieces(lambda piece: model(piece, cache=cache), row, sizes)
        assert_same(found, model(row))
    assert int(cache.length) == 7


@PATHS
@FIXED
@PIECES
def test_encoder_decoder_with_cache(path, fixed, sizes):
    model = tiny_model()
    source, layout = padded(sequences([5, 2]), extra=1)
    target = tokens(2, 7)
    memory = model.remember(source, layout)
    cache = empty(model, 2, fixed)
    with use_path(model, path):
        found = in_pieces(lambda piece: model.decode(piece, memory, cache=cache), target, sizes)
        assert_same(found, model.decode(target, memory))
        assert_same(model.output(found), model(source, target, layout))


@PATHS
@FIXED
def test_beams_share_their_source(path, fixed):
    """Three rows for each source, decoded with a cache, equal rows that each have a copy."""
    model = tiny_model()
    source, layout = padded(sequences([5, 2]))
    target = tokens(6, 4)
    memory, cache = model.remember(source, layout), empty(model, 6, fixed)
    copies = torch.tensor([0, 0, 0, 1, 1, 1])
    with use_path(model, path):
        expected = model(source[copies], target, Layout(lengths=layout.lengths[copies]))
        whole = model.decode(target, memory)
        steps = in_pieces(lambda piece: model.decode(piece, memory, cache=cache), target, [1] * 4)
    assert_same(model.output(whole), expected)
    assert_same(model.output(steps), expected)


@FIXED
@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0], [0, 0, 0]], ids=str)
def test_select_reorders_rows(fixed, rows):
    model = tiny_model(family="decoder")
    before, after = tokens(3, 4), tokens(3, 2)
    cache, chosen = empty(model, 3, fixed), torch.tensor(rows)
    model(before, cache=cache)
    cache.select(chosen)
    found = in_pieces(lambda piece: model(piece, cache=cache), after, [1, 1])
    assert_same(found, model(torch.cat([before[chosen], after], dim=1))[:, 4:])


@pytest.mark.parametrize("rows", [[2], [3, 0], [1, 1]], ids=str)
def test_select_drops_rows_of_a_growing_cache(rows):
    model = tiny_model(family="decoder")
    before, after = tokens(4, 4), tokens(len(rows), 2)
    cache, chosen = empty(model, 4, fixed=False), torch.tensor(rows)
    model(before, cache=cache)
    cache.select(chosen)
    assert cache.store.shape[2] == len(rows)
    found = in_pieces(lambda piece: model(piece, cache=cache), after, [1, 1])
    assert_same(found, model(torch.cat([before[chosen], after], dim=1))[:, 4:])


def test_select_keeps_the_tensors_of_a_fixed_cache():
    """A captured graph reads from the same memory at every step."""
    model = tiny_model(family="decoder")
    cache = empty(model, 3, fixed=True)
    places = cache.store.data_ptr(), cache.length.data_ptr()
    model(tokens(3, 4), cache=cache)
    cache.select(torch.tensor([2, 2, 0]))
    model(tokens(3, 1), cache=cache)
    assert (cache.store.data_ptr(), cache.length.data_ptr()) == places


def test_memory_select_keeps_sources():
    model: EncoderDecoder = tiny_model()
    source, layout = padded(sequences([5, 2, 4]))
    target, chosen = tokens(2, 3), torch.tensor([2, 0])
    found = model.decode(target, model.remember(source, layout).select(chosen))
    expected = model(source[chosen], target, Layout(lengths=layout.lengths[chosen]))
    assert_same(model.output(found), expected)


def test_cache_has_room_for_its_key_value_heads_alone():
    model = tiny_model(family="decoder", n_kv_heads=1, n_decoder_layers=3)
    cache = empty(model, 5, fixed=False)
    assert cache.store.shape == (3, 2, 5, 1, ROOM, 4)
    assert cache.store.dtype == torch.float64 and cache.length == 0


@FIXED
def test_a_full_cache_is_an_error(fixed):
    model = tiny_model(family="decoder")
    cache = empty(model, 1, fixed)
    model(tokens(1, ROOM), cache=cache)
    with pytest.raises((RuntimeError, IndexError)):
        model(tokens(1, 1), cache=cache)
