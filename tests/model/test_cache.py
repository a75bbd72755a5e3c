"""Decoding step by step with a cache equals reading the whole text again at each step."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.model import Cache, EncoderDecoder, Layout, equation, fast, use_path
from tests.model.tiny import assert_same, padded, sequences, tiny_model, tokens

pytestmark = pytest.mark.usefixtures("no_gradients")
PATHS = pytest.mark.parametrize("path", [fast, equation])
FIXED = pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
ROOM = 9  # more than any text here, so that a fixed cache has an end to hide
DECODERS = {
    "sinusoidal": {},
    "learned": {"n_kv_heads": 2, "positions": "learned", "norm_position": "pre"},
    "rotary": {"n_kv_heads": 2, "positions": "rotary", "norm": "rms"},
    "window": {"positions": "rotary", "window": 3},
    "alternate": {"positions": "learned", "window": 2, "window_layers": "alternate"},
    "grouped window": {"n_kv_heads": 1, "window": 3, "window_layers": "alternate"},
}
CHOICES = pytest.mark.parametrize("choices", DECODERS.values(), ids=DECODERS)


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
@CHOICES
def test_decoder_with_cache(path, fixed, sizes, choices):
    model = tiny_model(family="decoder", **choices)
    row = tokens(3, 7)
    cache = empty(model, 3, fixed)
    with use_path(model, path):
        found = in_pieces(lambda piece: model(piece, cache=cache), row, sizes)
        assert_same(found, model(row))
    assert int(cache.length) == 7


FIRST = torch.tensor([[0], [3], [6]])  # three prompts of 7, 4 and 1 tokens


@PATHS
@FIXED
@PIECES
@CHOICES
def test_prompts_padded_in_front_with_cache(path, fixed, sizes, choices):
    """Pieces may be padding alone; then each row goes on from its own prompt."""
    model = tiny_model(family="decoder", **choices)
    prompts, after = tokens(3, 7), tokens(3, 2)
    cache = empty(model, 3, fixed)
    cache.first = FIRST
    whole = torch.cat([prompts, after], dim=1)
    with use_path(model, path):
        found = in_pieces(lambda piece: model(piece, cache=cache), whole, [*sizes, 1, 1])
        assert_same(found, model(whole, Layout(first=FIRST)))
        for logits, row, begin in zip(found, whole, FIRST.flatten(), strict=True):
            assert_same(logits[begin:], model(row[None, begin:])[0])


@st.composite
def pieces(draw: st.DrawFn, total: int = ROOM) -> list[int]:
    """Any way to cut a text into pieces."""
    ends = draw(st.sets(st.integers(1, total - 1)))
    edges = [0, *sorted(ends), total]
    return [end - begin for begin, end in pairwise(edges)]


@settings(max_examples=60)
@given(
    name=st.sampled_from([*DECODERS]),
    sizes=pieces(),
    fixed=st.booleans(),
    begins=st.none() | st.lists(st.integers(0, ROOM - 1), min_size=2, max_size=2),
)
def test_any_pieces_and_any_prompts(name, sizes, fixed, begins):
    model = tiny_model(family="decoder", **DECODERS[name])
    first = None if begins is None else torch.tensor(begins)[:, None]
    row, cache = tokens(2, ROOM), empty(model, 2, fixed)
    cache.first = first
    found = in_pieces(lambda piece: model(piece, cache=cache), row, sizes)
    assert_same(found, model(row, Layout(first=first)))


@PATHS
@FIXED
@PIECES
@pytest.mark.parametrize("choices", [{}, {"window": 3, "positions": "rotary"}], ids=str)
def test_encoder_decoder_with_cache(path, fixed, sizes, choices):
    model = tiny_model(**choices)
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


@FIXED
@CHOICES
def test_select_keeps_rows_with_their_beginnings(fixed, choices):
    model = tiny_model(family="decoder", **choices)
    before, after, chosen = tokens(3, 7), tokens(3, 2), torch.tensor([2, 1, 2])
    cache = empty(model, 3, fixed)
    cache.first = FIRST
    model(before, cache=cache)
    cache.select(chosen)
    assert torch.equal(cache.first, FIRST[chosen])
    found = in_pieces(lambda piece: model(piece, cache=cache), after, [1, 1])
    whole = torch.cat([before[chosen], after], dim=1)
    assert_same(found, model(whole, Layout(first=FIRST[chosen]))[:, 7:])


@pytest.mark.parametrize("rows", [[2, 1], [0, 0, 1, 1, 2, 2]], ids=["fewer", "more"])
def test_select_drops_and_copies_rows_with_their_beginnings(rows):
    model = tiny_model(family="decoder", positions="rotary", window=3)
    before, after, chosen = tokens(3, 7), tokens(len(rows), 2), torch.tensor(rows)
    cache = empty(model, 3, fixed=False)
    cache.first = FIRST
    model(before, cache=cache)
    cache.select(chosen)
    assert cache.store.shape[2] == len(rows) and torch.equal(cache.first, FIRST[chosen])
    found = in_pieces(lambda piece: model(piece, cache=cache), after, [1, 1])
    whole = torch.cat([before[chosen], after], dim=1)
    assert_same(found, model(whole, Layout(first=FIRST[chosen]))[:, 7:])


@FIXED
@CHOICES
def test_hypotheses_follow_those_they_go_on_from(fixed, choices):
    """Two rows for each of three prompts; a row may go on from the other of its own prompt."""
    model = tiny_model(family="decoder", **choices)
    before, after, rows = tokens(6, 7), tokens(6, 2), torch.tensor([1, 0, 2, 2, 5, 5])
    first = FIRST.repeat_interleave(2, dim=0)
    cache = empty(model, 6, fixed)
    cache.first = first
    model(before, cache=cache)
    cache.follow(rows)
    found = in_pieces(lambda piece: model(piece, cache=cache), after, [1, 1])
    whole = torch.cat([before[rows], after], dim=1)
    assert_same(found, model(whole, Layout(first=first))[:, 7:])


@CHOICES
def test_a_fixed_cache_takes_over_what_a_growing_one_has_read(choices):
    """In its own tensors, whatever it held before."""
    model = tiny_model(family="decoder", **choices)
    before, after = tokens(3, 7), tokens(3, 2)
    growing, fixed = empty(model, 3, fixed=False), empty(model, 3, fixed=True)
    growing.first, fixed.first = FIRST, torch.zeros_like(FIRST)
    model(tokens(3, 8), cache=fixed)
    places = [x.data_ptr() for x in (fixed.store, fixed.length, fixed.first)]
    model(before, cache=growing)
    fixed.fill(growing)
    assert [x.data_ptr() for x in (fixed.store, fixed.length, fixed.first)] == places
    found = in_pieces(lambda piece: model(piece, cache=fixed), after, [1, 1])
    whole = torch.cat([before, after], dim=1)
    assert_same(found, model(whole, Layout(first=FIRST))[:, 7:])


def test_what_new_tokens_see():
    """One x a key that is seen, one line a new token, after three that are there."""

    def lines(fixed: bool, n_new: int, window: int, first: Tensor | None = None) -> list[str]:
        length = torch.tensor(3) if fixed else 3
        cache = Cache(torch.zeros(1, 2, 1, 1, 6, 4), length, first)
        mask = cache.mask(n_new, window)
        drawn = mask.boolean(n_new, cache.n_keys(n_new), torch.device("cpu"))[0, 0]
        return ["".join("x" if seen else "." for seen in line) for line in drawn.tolist()]

    assert lines(fixed=False, n_new=1, window=0) == ["xxxx"]
    assert lines(fixed=True, n_new=1, window=0) == ["xxxx.."]
    assert lines(fixed=False, n_new=2, window=0) == ["xxxx.", "xxxxx"]
    assert lines(fixed=True, n_new=2, window=2) == ["..xx..", "...xx."]
    assert lines(fixed=False, n_new=1, window=2) == ["..xx"]
    late = torch.tensor([[1]])
    assert lines(fixed=False, n_new=1, window=0, first=late) == [".xxx"]
    assert lines(fixed=True, n_new=2, window=3, first=late) == [".xxx..", "..xxx."]
    assert lines(fixed=False, n_new=2, window=0, first=torch.tensor([[4]])) == [".....", "....x"]


def test_the_newest_token_of_a_growing_cache_needs_no_drawing():
    """It sees all that is there, which kernels do fastest."""
    store = torch.zeros(1, 2, 1, 1, 6, 4)
    assert Cache(store, 3).mask(1, 0).hides_nothing
    assert not Cache(store, 3).mask(1, 2).hides_nothing
    assert not Cache(store, 3).mask(2, 0).hides_nothing
    assert not Cache(store, torch.tensor(3)).mask(1, 0).hides_nothing
    assert not Cache(store, 3, torch.tensor([[1]])).mask(1, 0).hides_nothing


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
