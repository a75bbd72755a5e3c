"""T5's checkpoints and those of its version 1.1, both ways."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from qkv.config import preset
from qkv.convert.architectures.t5 import T5
from qkv.convert.huggingface.fitting import fitting
from qkv.errors import UserError
from qkv.model import parameter_shapes
from tests.convert.harness import (
    assert_round_trip,
    exported,
    loaded,
    made,
    read,
    saved,
)
from tests.convert.seq2seq import LENGTHS, same_logits, same_texts

NAME = "T5ForConditionalGeneration"
KINDS = ["relu", "gelu", "gelu_new", "gated-gelu", "gated-silu", "gated-relu", "gated-gelu_new"]
SMALL = {
    "vocab_size": 20,
    "d_model": 8,
    "num_heads": 2,
    "d_kv": 3,
    "num_layers": 1,
    "d_ff": 8,
    "n_positions": 30,
    "decoder_start_token_id": 0,
}


def made_t5(config: dict, apart: bool, seed: int = 0):
    """With an output of its own, which transformers 5 knows from files only."""
    theirs = made(NAME, config, seed)
    if apart:
        draw = torch.Generator().manual_seed(seed + 1)
        shape = config["vocab_size"], config["d_model"]
        theirs.lm_head.weight = nn.Parameter(torch.randn(shape, generator=draw))
    return theirs


@st.composite
def configs(draw) -> dict:
    return {
        "vocab_size": draw(st.integers(20, 40)),
        "d_model": draw(st.integers(5, 16)),
        "num_heads": draw(st.integers(1, 4)),
        "d_kv": draw(st.integers(2, 6)),
        "num_layers": draw(st.integers(1, 3)),
        "num_decoder_layers": draw(st.integers(1, 3)),
        "d_ff": draw(st.integers(5, 20)),
        "feed_forward_proj": draw(st.sampled_from(KINDS)),
        "relative_attention_num_buckets": draw(st.integers(4, 12)),
        "relative_attention_max_distance": draw(st.integers(7, 20)),
        "layer_norm_epsilon": draw(st.sampled_from([1e-6, 1e-3])),
        "tie_word_embeddings": draw(st.booleans()),
        "decoder_start_token_id": 0,
        **draw(st.sampled_from([{}, {"n_positions": 16}])),
    }


@settings(max_examples=8)
@given(
    config=configs(),
    apart=st.booleans(),
    lengths=LENGTHS,
    seed=st.integers(0, 99),
    shards=st.booleans(),
)
@torch.no_grad()
def test_both_ways(config, apart, lengths, seed, shards):
    theirs = made_t5(config, apart, seed)
    with saved(theirs, shards) as folder:
        source, ours = read(folder)
        assert ours.config.output_scale == config["tie_word_embeddings"]
        assert ours.config.tie == ("inputs" if apart else "all")
        assert ours.config.max_length == config.get("n_positions", 512)
        # Their cache has as many layers as the encoder.
        cache = config["num_decoder_layers"] <= config["num_layers"]
        same_logits(ours, theirs, lengths, seed)
        same_texts(ours, theirs, lengths, seed, use_cache=cache)
        with exported(source) as again:
            back = loaded(again, NAME)
            same_logits(ours, back, lengths, seed)
            same_texts(ours, back, lengths, seed, use_cache=cache)
        assert_round_trip(source)


@pytest.mark.parametrize("apart", [False, True])
@torch.no_grad()
def test_files_of_older_versions(apart):
    """They repeat matrices, have one that nobody reads, and tell by tying whether to scale."""
    theirs = made_t5({**SMALL, "tie_word_embeddings": not apart}, apart)
    with saved(theirs) as folder:
        weights = load_file(folder / "model.safetensors")
        unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        weights[unread] = torch.ones(32, 2)
        for side in ("encoder", "decoder"):
            weights[f"{side}.embed_tokens.weight"] = weights["shared.weight"].clone()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        for name in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "num_decoder_layers"):
            del config[name]
        config |= {"tie_word_embeddings": not apart, "architectures": ["T5WithLMHeadModel"]}
        (folder / "config.json").write_text(json.dumps(config))
        _, ours = read(folder)
        same_logits(ours, theirs, [5, 12])


@torch.no_grad()
def test_the_output_alone_may_hold_the_tied_matrix():
    theirs = made_t5(SMALL, apart=False)
    with saved(theirs) as folder:
        weights = load_file(folder / "model.safetensors")
        weights["lm_head.weight"] = weights.pop("shared.weight")
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        _, ours = read(folder)
        assert ours.config.tie == "all"
        same_logits(ours, theirs, [5, 12])


@pytest.mark.parametrize(
    "said",
    [
        {"feed_forward_proj": "gated-gelu"},
        {"feed_forward_proj": "relu", "is_gated_act": True},
    ],
    ids=str,
)
@torch.no_grad()
def test_the_exact_gelu_can_be_a_gate(said):
    theirs = made_t5({**SMALL, **said, "dense_act_fn": "gelu"}, True)
    with saved(theirs) as folder:
        source, ours = read(folder)
        assert (ours.config.activation, ours.config.gated) == ("gelu", True)
        same_logits(ours, theirs, [5, 12])
        assert_round_trip(source)


@pytest.mark.parametrize(("buckets", "farthest"), [(3, 20), (16, 8), (32, 9)])
def test_buckets_of_which_theirs_makes_no_sense(buckets, farthest):
    sizes = {"relative_buckets": buckets, "relative_length": farthest}
    with pytest.raises(UserError, match=f"{buckets} buckets for distances up to {farthest}"):
        fitting(preset("t5-small", **sizes), "translate")
    assert fitting(preset("t5-small"), "translate")[0] is T5


def test_buckets_are_no_reason_where_positions_are_others():
    """Each config has a number of them, which only relative positions look at."""
    with pytest.raises(UserError, match="Marian comes near, but has no positions = 'rotary'"):
        fitting(preset("transformer-tiny", positions="rotary", max_length=32), "translate")


@pytest.mark.parametrize(
    ("name", "n_weights"),
    [
        ("t5-small", 60_506_624),
        ("t5-base", 222_903_552),
        ("t5-gated-small", 76_961_152),
        ("t5-gated-base", 247_577_856),
    ],
)
def test_presets_have_as_many_weights_as_the_published_models(name, n_weights):
    shapes = parameter_shapes(preset(name, vocab_size=32_128))
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == n_weights
