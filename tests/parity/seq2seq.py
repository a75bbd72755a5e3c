"""An encoder-decoder of transformers', ours with the same weights, and how both compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from qkv.convert.architectures.architecture import Architecture
from qkv.model import EncoderDecoder, equation, fast, use_path
from tests.convert.harness import read, saved, texts

TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-10}
Pair = tuple[PreTrainedModel, EncoderDecoder]
PATHS = pytest.mark.parametrize("path", [fast, equation])
Sizes = Mapping[str, Mapping[str, Any]]


def pair_of(theirs: PreTrainedModel) -> Pair:
    """Both, in eval mode and float32."""
    with saved(theirs) as folder:
        ours = read(folder)[1]
    assert isinstance(ours, EncoderDecoder)
    return theirs.eval(), ours.eval()


def both_logits(
    pair: Pair, lengths: list[int], n_target: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Teacher-forced logits of both on padded sources."""
    theirs, ours = pair
    source, seen, layout = texts(lengths, ours.config.vocab_size, seed)
    target, _, _ = texts([n_target] * len(lengths), ours.config.vocab_size, seed + 1)
    said = theirs(input_ids=source, attention_mask=seen, decoder_input_ids=target).logits
    return ours(source, target, layout), said


@torch.no_grad()
def assert_same_logits(pair: Pair, dtype, path, lengths: list[int], n_target: int, seed=0) -> None:
    theirs, ours = (model.to(dtype) for model in pair)
    with use_path(ours, path):
        mine, said = both_logits((theirs, ours), lengths, n_target, seed)
    torch.testing.assert_close(mine, said, atol=TOLERANCES[dtype], rtol=0)


def assert_same_gradients(pair: Pair, rules, path) -> None:
    """Of every weight; `rules` say where theirs stand."""
    theirs, ours = (model.double() for model in pair)
    with use_path(ours, path):
        mine, said = both_logits((theirs, ours), [5, 9, 2], 7)
    cotangent = torch.randn_like(mine)
    (mine * cotangent).mean().backward()
    (said * cotangent).mean().backward()
    their_gradients = {name: one.grad for name, one in theirs.named_parameters()}
    compared = {}
    for rule in rules:
        if all(part.name in their_gradients for part in rule.parts):
            compared[rule.ours] = rule.read(their_gradients)
    missing = set()
    for name, parameter in ours.named_parameters():
        if name not in compared:
            missing.add(name)
            continue
        torch.testing.assert_close(parameter.grad, compared[name], atol=1e-10, rtol=0)
    assert missing <= {"output.projection.bias"}  # no parameter of theirs


# The tests that every encoder-decoder passes, made for the pairs of one architecture


def logits_are_equal(make: Callable[..., Pair], sizes: Sizes, n_tokens: int) -> Callable[..., None]:
    """Of each size, on both paths and in both precisions."""

    @pytest.mark.parametrize("dtype", TOLERANCES)
    @PATHS
    @pytest.mark.parametrize("choice", sizes.values(), ids=sizes)
    def test(choice, path, dtype):
        pair = make(seed=3, **choice)
        assert_same_logits(pair, dtype, path, [7, 1, n_tokens, 4], n_tokens)

    return test


def any_lengths_are_equal(make: Callable[..., Pair], longest: int) -> Callable[..., None]:
    """Sources and targets of whatever lengths, padded."""
    pair = make()

    @settings(max_examples=15)
    @given(
        lengths=st.lists(st.integers(1, longest), min_size=1, max_size=4),
        n_target=st.integers(1, longest),
        seed=st.integers(0, 1000),
        path=st.sampled_from([fast, equation]),
    )
    def test(lengths, n_target, seed, path):
        assert_same_logits(pair, torch.float64, path, lengths, n_target, seed)

    return test


def gradients_are_equal(
    make: Callable[..., Pair], sizes: Sizes, architecture: Architecture
) -> Callable[..., None]:
    """Of every weight, on both paths."""

    @PATHS
    @pytest.mark.parametrize("choice", sizes.values(), ids=sizes)
    def test(choice, path):
        pair = make(seed=1, **choice)
        assert_same_gradients(pair, architecture.rules(pair[1].config, "seq2seq"), path)

    return test
