"""DeBERTa's checkpoints (all three versions), both ways."""

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file

from qkv.config import preset
from qkv.convert.architectures.deberta import DEBERTA, DEBERTA_1
from qkv.convert.huggingface.fitting import misfits
from qkv.errors import UserError
from tests.convert.encoders import (
    LONGEST,
    heads_go_both_ways,
    text_configs,
)
from tests.convert.harness import change, read, saved
from tests.convert.small import FIRST_DEBERTA, RELEASED_DEBERTA, assert_reads_same, small

CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu"}


@st.composite
def configs(draw, head) -> dict:
    buckets, farthest = draw(
        st.sampled_from([(4, -1), (5, 10), (4, 40), (2, -1), (-1, -1), (-1, 6), (8, LONGEST)])
    )
    found = {
        **draw(text_configs()),
        **RELEASED_DEBERTA,
        "position_buckets": buckets,
        "max_relative_positions": farthest,
        "type_vocab_size": draw(st.integers(0, 3)),
        "pooler_hidden_act": "gelu",
    }
    size = draw(st.sampled_from([0, 0, 1, 3, 5]))
    if size:
        found |= {"conv_kernel_size": size, "conv_act": "gelu"}
    if head == "sequence":
        found["pooler_hidden_act"] = draw(st.sampled_from(["gelu", "tanh"]))
    return found


test_both_ways = heads_go_both_ways(DEBERTA, configs)


@torch.no_grad()
def test_the_third_versions_own_head_is_read():
    theirs = small("DebertaV2ForMaskedLM", legacy=False, tie_word_embeddings=False)
    with saved(theirs) as folder:
        stored = load_file(folder / "model.safetensors")
        assert any(name.startswith("lm_predictions") for name in stored)
        assert_reads_same(theirs, folder, "masked")


def test_what_pre_training_left_beside_the_model_is_ignored():
    with saved(small("DebertaV2ForMaskedLM", legacy=False)) as folder:
        more = {
            "mask_predictions.dense.weight": torch.ones(8, 8),
            "mask_predictions.classifier.bias": torch.ones(1),
            "deberta.embeddings.position_embeddings.weight": torch.ones(16, 8),
            "deberta.embeddings.position_ids": torch.arange(16)[None],
        }
        # Released files say no class.
        change(folder, lambda weights: {**weights, **more}, ["architectures"])
        source, ours = read(folder)
    assert source.content["task"] == "embed" and ours.config.head == "none"


@pytest.mark.parametrize(
    "changed, reasons",
    [
        ({}, []),
        ({"relative_buckets": 500}, []),  # each distance has its own
        ({"relative_buckets": 8, "relative_length": 3}, []),
        ({"relative_buckets": 8, "relative_length": 300}, []),
        ({"convolution": 3}, []),
        ({"embedding_norm": False}, ["embedding_norm = False"]),
        ({"d_embedding": 4}, ["d_embedding = 4"]),
    ],
    ids=str,
)
def test_which_of_our_configs_it_can_say(changed, reasons):
    config = preset(
        "deberta-mini", **{"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, **changed}
    )
    assert misfits(DEBERTA, config, "none") == reasons


@st.composite
def first_configs(draw, head) -> dict:
    found = {
        **draw(text_configs()),
        **FIRST_DEBERTA,
        "num_labels": draw(st.integers(2, 4)),
        "max_relative_positions": draw(st.sampled_from([-1, 6, 40])),
        "type_vocab_size": draw(st.integers(0, 3)),
        "pooler_hidden_act": "gelu",
    }
    if head == "sequence":
        found["pooler_hidden_act"] = draw(st.sampled_from(["gelu", "tanh"]))
    return found


test_the_first_version_both_ways = heads_go_both_ways(DEBERTA_1, first_configs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"talking_head": True}, "talking_head is True"),
        ({"pos_att_type": ["c2p"]}, r"pos_att_type is \['c2p'\]"),
        ({"position_biased_input": True}, "position_biased_input is True"),
    ],
    ids=str,
)
def test_what_cannot_be_read_of_the_first_version(changed, message):
    with saved(small("DebertaModel")) as folder:
        change(folder, **changed)
        with pytest.raises(UserError, match=message):
            read(folder)


def test_a_bias_of_keys_is_left_out_of_encoders_only():
    with pytest.raises(UserError, match="key_bias = false is for encoders"):
        preset("gpt2", key_bias=False)
