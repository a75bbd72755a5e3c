"""What the tests of all text encoders share: sizes, what both models say, and both ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from qkv.convert.architectures.architecture import Architecture
from qkv.model import Encoder
from tests.convert.harness import (
    assert_close,
    assert_comes_back,
    exported,
    loaded,
    made,
    read,
    saved,
    texts,
)

LONGEST = 12  # text that is read
TINY = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 16,
}


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """What all configs of theirs have, apart from how long texts may be."""
    heads = draw(st.sampled_from([1, 2, 4]))
    return {
        "hidden_size": heads * draw(st.sampled_from([4, 6])),
        "num_attention_heads": heads,
        "num_hidden_layers": draw(st.integers(1, 3)),
        "intermediate_size": draw(st.integers(5, 20)),
        "hidden_act": draw(st.sampled_from(["gelu", "relu", "gelu_new", "silu"])),
        "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-3])),
        "num_labels": draw(st.integers(1, 4)),
    }


@st.composite
def text_configs(draw: st.DrawFn) -> dict[str, Any]:
    """The same, of those that read texts."""
    return {
        **draw(sizes()),
        "vocab_size": draw(st.integers(20, 50)),
        "max_position_embeddings": draw(st.integers(LONGEST, 20)),
        "type_vocab_size": draw(st.integers(1, 3)),
        "tie_word_embeddings": draw(st.booleans()),
    }


def said(
    head: str, ours: Encoder, theirs: PreTrainedModel, lengths: list[int], seed: int
) -> list[tuple[Tensor, Tensor]]:
    """What both say of the same texts, at real tokens."""
    tokens, mask, layout = texts(lengths, ours.config.vocab_size, seed)
    real = mask.bool()
    tokens = tokens.where(real, ours.config.pad_id)
    kinds = torch.randint(max(1, ours.config.n_segments), tokens.shape)
    given = {"token_type_ids": kinds} if ours.config.n_segments > 1 else {}
    other = theirs(input_ids=tokens, attention_mask=mask, **given)
    mine = ours(tokens, layout, kinds)
    if head == "none":
        found = [(mine[real], other.last_hidden_state[real])]
        if other.get("pooler_output") is not None and ours.config.pooler != "none":
            found.append((ours.pooler(mine, layout), other.pooler_output))
        return found
    if head == "pairs":
        vector = ours.pooler(ours.hidden(tokens, layout, kinds), layout)
        assert ours.pair_head is not None
        pairs = other.get("seq_relationship_logits", other.get("sop_logits"))
        return [
            (mine[real], other.prediction_logits[real]),
            (ours.pair_head(vector).flip(1), pairs),
        ]
    if head == "answer":
        both = torch.stack([other.start_logits, other.end_logits], -1)
        return [(mine[real], both[real])]
    return [(mine, other.logits) if head == "sequence" else (mine[real], other.logits[real])]


Said = Callable[[str, Encoder, PreTrainedModel, list[int], int], list[tuple[Tensor, Tensor]]]


@torch.no_grad()
def assert_both_ways(
    architecture: Architecture,
    head: str,
    config: Mapping[str, Any],
    lengths: list[int],
    seed: int = 0,
    shards: bool = False,
    said: Said = said,
) -> None:
    """Theirs read, written again and read again, always says the same."""
    name = architecture.classes[head]
    if head in ("answer", "pairs"):
        config = {**config, "num_labels": 2}
    theirs = made(name, config, seed)
    with saved(theirs, shards) as folder:
        source, ours = read(folder)
        assert isinstance(ours, Encoder)
        for mine, other in said(head, ours, theirs, lengths, seed):
            assert_close(mine, other)
        with exported(source) as again:
            assert json.loads((again / "config.json").read_text())["architectures"] == [name]
            for mine, other in said(head, ours, loaded(again, name), lengths, seed):
                assert_close(mine, other)
            assert_comes_back(source, again)


def heads_go_both_ways(
    architecture: Architecture, configs: Callable[[str], st.SearchStrategy[dict[str, Any]]]
) -> Callable[..., None]:
    """A test of each head that an architecture has, for configs that suit the head."""

    @pytest.mark.parametrize("head", architecture.classes)
    @settings(max_examples=2)
    @given(
        data=st.data(),
        lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=3),
        seed=st.integers(0, 99),
        shards=st.booleans(),
    )
    def test(head, data, lengths, seed, shards):
        config = data.draw(configs(head))
        assert_both_ways(architecture, head, config, lengths, seed, shards)

    return test
