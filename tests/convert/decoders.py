"""What the tests of all decoders share: both ways, with the same logits and the same search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from qkv.config import DecodeConfig
from qkv.decode import complete
from qkv.model import Decoder
from tests.convert.harness import (
    assert_close,
    assert_round_trip,
    exported,
    loaded,
    made,
    read,
    saved,
)
from tests.parity.gpt import both_logits

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
        assert_round_trip(source)
        with exported(source) as again:
            back = loaded(again, name)
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
    """Greedy and with beams, from prompts that we take together and they one by one."""
    for beams in (1, 4):
        found = complete(ours, PROMPTS, DecodeConfig(beams=beams, max_length=8))
        for prompt, (one, *_) in zip(PROMPTS, found, strict=True):
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
