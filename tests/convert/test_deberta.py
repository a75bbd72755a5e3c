"""DeBERTa's checkpoints (its second and third version), both ways."""

import json

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from qkv.config import preset
from qkv.convert.architectures.deberta import DEBERTA
from qkv.convert.huggingface.fitting import misfits
from tests.convert.encoders import (
    LONGEST,
    TINY,
    assert_unreadable,
    heads_go_both_ways,
    said,
    text_configs,
)
from tests.convert.harness import assert_close, assert_round_trip, made, read, saved

RELEASED = {
    "relative_attention": True,
    "pos_att_type": "c2p|p2c",
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "position_buckets": 4,
}
CONFIG = {**TINY, **RELEASED}
CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu"}


@st.composite
def configs(draw, head) -> dict:
    buckets, farthest = draw(
        st.sampled_from([(4, -1), (5, 10), (4, 40), (2, -1), (-1, -1), (-1, 6), (8, LONGEST)])
    )
    found = {
        **draw(text_configs()),
        **RELEASED,
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
    theirs = made("DebertaV2ForMaskedLM", {**CONFIG, "legacy": False, "tie_word_embeddings": False})
    with saved(theirs) as folder:
        assert any(name.startswith("lm_predictions") for name in weights_of(folder))
        source, ours = read(folder)
        ((mine, other),) = said("masked", ours, theirs, [7, 12], 0)
        assert_close(mine, other)
        assert_round_trip(source)


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def test_what_pre_training_left_beside_the_model_is_ignored():
    with saved(made("DebertaV2ForMaskedLM", {**CONFIG, "legacy": False})) as folder:
        more = {
            "mask_predictions.dense.weight": torch.ones(8, 8),
            "mask_predictions.classifier.bias": torch.ones(1),
            "deberta.embeddings.position_embeddings.weight": torch.ones(16, 8),
            "deberta.embeddings.position_ids": torch.arange(16)[None],
        }
        save_file({**weights_of(folder), **more}, folder / "model.safetensors", {"format": "pt"})
        values = json.loads((folder / "config.json").read_text())
        del values["architectures"]  # as it is in released files
        (folder / "config.json").write_text(json.dumps(values))
        source, ours = read(folder)
    assert source.content["task"] == "embed" and ours.config.head == "none"


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"relative_attention": False}, "relative_attention is False"),
        ({"share_att_key": False}, "share_att_key is False"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd is 'none'"),
        ({"position_biased_input": True}, "position_biased_input is True"),
        ({"pos_att_type": "c2p"}, r"pos_att_type is \['c2p'\]"),
        ({"embedding_size": 4}, "embedding_size is 4, but only 8"),
        ({**CONVOLUTION, "conv_act": "tanh"}, "conv_act is 'tanh'"),
        ({**CONVOLUTION, "conv_groups": 2}, "conv_groups is 2"),
        ({**CONVOLUTION, "conv_kernel_size": 4}, "convolution is 4"),
        ({"pooler_hidden_act": "relu"}, "pooler_hidden_act is 'relu'"),
        ({"attention_head_size": 6}, "attention_head_size is 6"),
    ],
    ids=str,
)
def test_what_is_not_as_released_models_have_it_is_refused(changed, message):
    assert_unreadable("DebertaV2Model", {**CONFIG, **changed}, message)


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
