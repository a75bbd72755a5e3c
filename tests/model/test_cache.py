"""Decoding step by step with a cache equals reading the whole text again at each step."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.decode.prompts import empty_store
from qkv.model import Layout, NewTokens, equation, fast, use_path
from tests.model.tiny import DECODERS, assert_same, padded, sequences, tiny_model, tokens

pytestmark = pytest.mark.usefixtures("no_gradients")
PATHS = pytest.mark.parametrize("path", [fast, equation])
FIXED = pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
ROOM = 9  # more than any text here, so that a fixed cache has an end to hide
CHOICES = pytest.mark.parametrize("choices", DECODERS.values(), ids=DECODERS)


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


class Reader:
    """Tokens so far in the rows of a KV cache, read as on a CPU (growing) or a GPU (fixed)."""

    def __init__(self, model, rows: int, fixed: bool, lengths: Tensor | None = None) -> None:
        self.store, self.fixed = empty_store(model, rows, ROOM), fixed
        self.start = torch.zeros(rows, dtype=torch.int64) if fixed else 0
        if lengths is not None:
            self.start = lengths

    def next(self, n_tokens: int) -> NewTokens:
        """Where the next tokens of each row are written, and what they see."""
        start = self.start
        n_keys = ROOM if self.fixed else int(torch.as_tensor(start).max()) + n_tokens
        self.start = start + n_tokens
        return NewTokens(self.store, start, n_keys)


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
    row, reader = tokens(3, 7), Reader(model, 3, fixed)
    with use_path(model, path):
        found = in_pieces(lambda piece: model(piece, cache=reader.next(piece.shape[1])), row, sizes)
        assert_same(found, model(row))


LENGTHS = torch.tensor([7, 4, 1])


@PATHS
@FIXED
@CHOICES
def test_rows_of_different_lengths(path, fixed, choices):
    """Prompts are padded at the end; then each row goes on from its own."""
    model = tiny_model(family="decoder", **choices)
    prompts, after = tokens(3, 7), tokens(3, 2)
    with use_path(model, path):
        reader = Reader(model, 3, fixed)
        model(prompts, cache=NewTokens(reader.store, 0, 7))
        reader.start = LENGTHS
        found = in_pieces(lambda piece: model(piece, cache=reader.next(1)), after, [1, 1])
        for logits, prompt, length, rest in zip(found, prompts, LENGTHS, after, strict=True):
            whole = torch.cat([prompt[:length], rest])
            assert_same(logits, model(whole[None])[0, length:])


@PATHS
@CHOICES
def test_beams_are_tokens_of_one_row(path, choices):
    """Each sees the prompt and the slots of its own hypothesis, which no copy has moved."""
    model = tiny_model(family="decoder", **choices)
    prompt, first, second = tokens(1, 3), tokens(1, 2), tokens(1, 2)
    store = empty_store(model, 1, ROOM)
    model(prompt, cache=NewTokens(store, 0, 3))
    # Slots 3 and 4 hold the first step's tokens, 5 and 6 the second's; both go on from token 1.
    visible = torch.zeros((1, 2, ROOM), dtype=torch.bool)
    visible[:, :, :3] = True
    slots = torch.tensor([[0, 1, 2, 3, 3, 4, 4, 5, 5]])
    outputs = []
    for step, newest in enumerate((first, second)):
        start = 3 + 2 * step
        visible[0, [0, 1], [start, start + 1]] = True
        position = torch.full((1, 2), 3 + step)
        seen = visible[:, :, : start + 2]
        new = NewTokens(
            store, torch.tensor([start]), start + 2, position, slots[:, : start + 2], seen
        )
        with use_path(model, path):
            outputs.append(model(newest, cache=new)[0])
        visible = visible[:, [1, 1]]
    for beam in range(2):
        whole = torch.cat([prompt[0], first[0, beam : beam + 1]])
        assert_same(outputs[0][beam], model(whole[None])[0, -1])
        whole = torch.cat([prompt[0], first[0, 1:], second[0, beam : beam + 1]])
        assert_same(outputs[1][beam], model(whole[None])[0, -1])


@st.composite
def pieces(draw: st.DrawFn, total: int = ROOM) -> list[int]:
    """Any way to cut a text into pieces."""
    ends = draw(st.sets(st.integers(1, total - 1)))
    edges = [0, *sorted(ends), total]
    return [end - begin for begin, end in pairwise(edges)]


@settings(max_examples=60)
@given(name=st.sampled_from([*DECODERS]), sizes=pieces(), fixed=st.booleans())
def test_any_pieces(name, sizes, fixed):
    model = tiny_model(family="decoder", **DECODERS[name])
    row, reader = tokens(2, ROOM), Reader(model, 2, fixed)
    found = in_pieces(lambda piece: model(piece, cache=reader.next(piece.shape[1])), row, sizes)
    assert_same(found, model(row))


@PATHS
@FIXED
@PIECES
@pytest.mark.parametrize("name", ["sinusoidal", "window", "relative"])
def test_encoder_decoder_with_cache(path, fixed, sizes, name):
    model = tiny_model(**DECODERS[name])
    source, layout = padded(sequences([5, 2]), extra=1)
    target = tokens(2, 7)
    memory = model.remember(source, layout)
    reader = Reader(model, 2, fixed)

    def step(piece):
        return model.decode(piece, memory, cache=reader.next(piece.shape[1]))

    with use_path(model, path):
        found = in_pieces(step, target, sizes)
        assert_same(found, model.decode(target, memory))
        assert_same(model.output(found), model(source, target, layout))


@PATHS
@FIXED
def test_beams_share_their_source(path, fixed):
    """Three rows for each source, decoded with a cache, equal rows that each have a copy."""
    model = tiny_model()
    source, layout = padded(sequences([5, 2]))
    target = tokens(6, 4)
    memory, reader = model.remember(source, layout), Reader(model, 6, fixed)
    copies = torch.tensor([0, 0, 0, 1, 1, 1])
    with use_path(model, path):
        expected = model(source[copies], target, Layout(lengths=layout.lengths[copies]))
        whole = model.decode(target, memory)
        steps = [model.decode(x, memory, cache=reader.next(1)) for x in target.split(1, dim=1)]
    assert_same(model.output(whole), expected)
    assert_same(model.output(torch.cat(steps, dim=1)), expected)


def test_what_new_tokens_see():
    """One x a key that is seen, one line a new token, after three that are there."""

    def lines(fixed: bool, n_new: int, window: int) -> list[str]:
        start = torch.tensor([3]) if fixed else 3
        new = NewTokens(torch.zeros(1, 2, 1, 1, 6, 4), start, 6 if fixed else 3 + n_new)
        drawn = new.mask(n_new, window).boolean(n_new, new.n_keys, torch.device("cpu"))[0, 0]
        return ["".join("x" if seen else "." for seen in line) for line in drawn.tolist()]

    assert lines(fixed=False, n_new=1, window=0) == ["xxxx"]
    assert lines(fixed=True, n_new=1, window=0) == ["xxxx.."]
    assert lines(fixed=False, n_new=2, window=0) == ["xxxx.", "xxxxx"]
    assert lines(fixed=True, n_new=2, window=2) == ["..xx..", "...xx."]
    assert lines(fixed=False, n_new=1, window=2) == ["..xx"]


def test_the_newest_token_of_rows_of_one_length_needs_no_drawing():
    """It sees all that is there, which kernels do fastest."""
    store = torch.zeros(1, 2, 1, 1, 6, 4)
    assert NewTokens(store, 3, 4).mask(1, 0).hides_nothing
    assert not NewTokens(store, 3, 4).mask(1, 2).hides_nothing
    assert not NewTokens(store, 3, 5).mask(2, 0).hides_nothing
    assert not NewTokens(store, torch.tensor([3]), 6).mask(1, 0).hides_nothing


def test_cache_has_room_for_its_key_value_heads_alone():
    model = tiny_model(family="decoder", n_kv_heads=1, n_decoder_layers=3)
    store = empty_store(model, 5, ROOM)
    assert store.shape == (3, 2, 5, 1, ROOM, 4) and store.dtype == torch.float64


@FIXED
def test_a_full_cache_is_an_error(fixed):
    model = tiny_model(family="decoder")
    reader = Reader(model, 1, fixed)
    model(tokens(1, ROOM), cache=reader.next(ROOM))
    with pytest.raises((RuntimeError, IndexError)):
        model(tokens(1, 1), cache=reader.next(1))
