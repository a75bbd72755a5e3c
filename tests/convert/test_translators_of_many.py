"""mT5, mBART, M2M100 and Pegasus: checkpoints of encoder-decoders, both ways."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.architectures.architecture import USUAL_IDS
from qkv.errors import UserError
from tests.convert.harness import change, exported, made, read, saved
from tests.convert.seq2seq import LENGTHS, assert_both_ways, bart_sizes, draw_bias
from tests.convert.small import assert_reads_same, small
from tests.convert.test_t5 import configs as t5_configs

LIKE_BART = {
    "mbart": {"decoder_start_token_id": 2},
    "m2m_100": {},
    "pegasus": {},
}


@pytest.mark.parametrize("model_type", LIKE_BART)
@settings(max_examples=4)
@given(config=bart_sizes([4, 6]), lengths=LENGTHS, seed=st.integers(0, 99), shards=st.booleans())
@torch.no_grad()
def test_both_ways(model_type, config, lengths, seed, shards):
    config = {**config, **USUAL_IDS[model_type], **LIKE_BART[model_type]}
    theirs = made(ARCHITECTURES[model_type].classes["seq2seq"], config, seed)
    if model_type != "m2m_100":
        draw_bias(theirs, seed)
    assert_both_ways(theirs, lengths, seed, shards)


@settings(max_examples=4)
@given(config=t5_configs(), lengths=LENGTHS, seed=st.integers(0, 99), shards=st.booleans())
@torch.no_grad()
def test_mt5_both_ways(config, lengths, seed, shards):
    theirs = made("MT5ForConditionalGeneration", config, seed)
    # Their cache has as many layers as the encoder.
    cache = config["num_decoder_layers"] <= config["num_layers"]
    assert_both_ways(theirs, lengths, seed, shards, use_cache=cache)


@torch.no_grad()
def test_published_mt5_has_an_output_of_its_own():
    theirs = small("MT5ForConditionalGeneration")
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn(20, 8))
    with saved(theirs) as folder:
        change(folder, drop=["dense_act_fn", "is_gated_act", "feed_forward_proj"])
        _, ours = assert_reads_same(theirs, folder)
    assert (ours.config.tie, ours.config.gated, ours.config.output_scale) == ("inputs", True, False)


@pytest.mark.parametrize("model_type", [*LIKE_BART, "mt5"])
def test_an_export_is_what_it_came_from(model_type):
    with saved(small(ARCHITECTURES[model_type].classes["seq2seq"])) as folder:
        source, _ = read(folder)
        with exported(source) as again:
            said = json.loads((again / "config.json").read_text())
    assert said["model_type"] == model_type


@torch.no_grad()
def test_waves_of_m2m100_begin_after_the_padding():
    theirs = small("M2M100ForConditionalGeneration", pad_token_id=4, max_position_embeddings=200)
    with saved(theirs) as folder:
        _, ours = read(folder)
    table = theirs.model.encoder.embed_positions.weights
    assert len(table) == 202  # theirs makes more when a text needs them
    assert torch.equal(ours.encoder.positions.table[:197], table[5:])


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("MBart", {"normalize_before": False}, "normalize_before is False"),
        ("MBart", {"static_position_embeddings": True}, "static_position_embeddings is True"),
        ("Pegasus", {"normalize_embedding": True}, "normalize_embedding is True"),
        ("Pegasus", {"add_final_layer_norm": False}, "add_final_layer_norm is False"),
        ("M2M100", {"decoder_ffn_dim": 9}, "decoder_ffn_dim is 9"),
    ],
)
def test_what_cannot_be_read_is_named(name, changed, message):
    with saved(small(f"{name}ForConditionalGeneration")) as folder:
        change(folder, **changed)
        with pytest.raises(UserError, match=message):
            read(folder)
