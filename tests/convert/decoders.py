"""What the tests of all decoders share: both ways, with the same logits and the same search."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from qkv.config import DecodeConfig
from qkv.decode import complete
from qkv.model import Decoder
from tests.convert.encoders import said
from tests.convert.harness import (
    assert_close,
    assert_comes_back,
    exported,
    loaded,
    made,
    read,
    saved,
)
from tests.parity.pairs import assert_same_gradients, both_logits, with_ours

PROMPTS = [[5, 6, 7, 8, 9], [11], [12, 13, 14, 15, 16, 17]]


def assert_both_ways(
    name: str, config: Mapping[str, object], lengths: list[int], seed: int, shards: bool
) -> None:
    """Their folder says the same to us, ours the same to them, and nothing is lost between."""
    theirs = made(name, config, seed)
    with saved(theirs, shards) as folder:
        source, ours = read(folder)
        assert isinstance(ours, Decoder)
        assert_close(*both_logits((theirs, ours), lengths, seed))
        with exported(source) as again:  # as the first class that computes it: an OPT is a GPT-2
            [written] = json.loads((again / "config.json").read_text())["architectures"]
            back = loaded(again, written)
            assert_comes_back(source, again)
        assert_close(*both_logits((back, ours), lengths, seed))
        assert_same_search(theirs, ours)


def goes_both_ways(
    class_name: str, configs: st.SearchStrategy[dict[str, Any]], max_examples: int, longest: int
) -> Callable[[], None]:
    """A test of an architecture, for configs and texts of up to `longest` tokens."""

    @settings(max_examples=max_examples)
    @given(
        config=configs,
        lengths=st.lists(st.integers(1, longest), min_size=1, max_size=3),
        seed=st.integers(0, 99),
        shards=st.booleans(),
    )
    @torch.no_grad()
    def test(config, lengths, seed, shards):
        assert_both_ways(class_name, config, lengths, seed, shards)

    return test


def assert_same_search(theirs: PreTrainedModel, ours: Decoder) -> None:
    """From prompts that we take together and they one by one: greedy, and one with beams."""
    for beams, n_prompts in ((1, 3), (4, 1)):
        found = complete(ours, PROMPTS, DecodeConfig(beams=beams, max_length=8))
        for prompt, (one, *_) in list(zip(PROMPTS, found, strict=True))[:n_prompts]:
            assert one.tokens == their_search(theirs, prompt, beams)


def their_search(model: PreTrainedModel, prompt: Sequence[int], beams: int) -> list[int]:
    """What comes before the end that their own config says, if it says any."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=8,
        num_beams=beams,
        do_sample=False,
    )
    said = model.generation_config.eos_token_id
    ends, new = said if isinstance(said, list) else [said], output[0].tolist()[len(prompt) :]
    return new[: next((place for place, token in enumerate(new) if token in ends), len(new))]


class KeepDouble(TorchFunctionMode):
    """Leaves float64 as it is where a model would compute in float32 whatever its weights are."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        is_double = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if is_double and function is Tensor.float:
            return args[0]
        if is_double and function is Tensor.to and torch.float32 in (*args, kwargs.get("dtype")):
            return args[0]
        if is_double and function in (F.softmax, torch.softmax):
            kwargs.pop("dtype", None)
        return function(*args, **kwargs)


def in_double(model: PreTrainedModel) -> PreTrainedModel:
    """Their model in float64, but for its angles, which both compute in float32."""
    angles = {name: x.clone() for name, x in model.named_buffers() if "inv_freq" in name}
    model.double()
    model.config._experts_implementation = "eager"  # other products of experts are of float32
    for name, buffer in angles.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, buffer)
    return model


def assert_same_in_double(theirs: PreTrainedModel, lengths: list[int], head: str = "") -> None:
    """What both say within 1e-9 of the largest, and gradients of every weight, which all matter.

    `head` is that of a classifier with a decoder's body.
    """
    theirs, ours = with_ours(theirs)
    with KeepDouble():
        pair = in_double(theirs), ours.double()
        labelled = said(head, pair[1], pair[0], lengths, 0) if head else []
        outputs = labelled or [both_logits(pair, lengths)]
        for mine, other in outputs:
            assert other.abs().max() > 0.1
            torch.testing.assert_close(mine, other, atol=1e-9 * other.abs().max().item(), rtol=0)
        assert_same_gradients(pair, outputs, limit=1e-8, least=1e-9)
