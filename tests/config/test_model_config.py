"""ModelConfig: its rules, each with the sentence that a person reads, and its plain form."""

import dataclasses
import json

import pytest

from qkv.config import ModelConfig, preset
from qkv.errors import UserError

MISTAKES = [
    ({"d_modle": 512}, "unknown key 'd_modle'; did you mean 'd_model'?"),
    ({"d_model": "512"}, "d_model is '512', but must be a whole number."),
    ({"d_model": 512.0}, "d_model is 512.0, but must be a whole number."),
    ({"d_model": True}, "d_model is True, but must be a whole number."),
    ({"gated": 1}, "gated is 1, but must be true or false."),
    ({"dropout": "much"}, "dropout is 'much', but must be a number."),
    ({"norm": "batch"}, "norm is 'batch', but must be one of: 'layer', 'rms', 'rms_plus_one'."),
    ({"norm": ["layer"]}, "norm is ['layer'], but must be one of: 'layer', 'rms', "),
    ({"vocab_size": 0}, "vocab_size is 0, but must be at least 1."),
    ({"d_key": 10**6}, "d_key is 1000000, but must be at most 65536."),
    ({"max_length": 2**25}, "max_length is 33554432, but must be at most 16777216."),
    ({"dropout": float("nan")}, "dropout is nan, but must be at least 0."),
    ({"d_model": 30, "n_heads": 4}, "d_model (30) is not divisible by n_heads (4); choose n_heads"),
    ({"n_heads": 4, "n_kv_heads": 3}, "n_heads (4) is not divisible by n_kv_heads (3); each key/"),
    ({"d_model": 15, "n_heads": 5}, "sinusoidal positions need an even width, but d_model (or d_"),
    (
        {"d_model": 12, "n_heads": 4, "positions": "rotary"},
        "rotary positions turn pairs, so a head's width must be even, but d_model / n_heads is 3.",
    ),
    (
        {"positions": "rotary", "rotary_share": 0.01},
        "rotary positions turn pairs, so a head's width must be even, but rotary_share of d_model",
    ),
    ({"source_vocab_size": 10}, "tie = 'all' needs one shared vocabulary; set tie = 'output' or "),
    ({"n_encoder_layers": 0}, "n_encoder_layers is 0, but the encoder-decoder family needs at "),
    (
        {"family": "decoder", "n_decoder_layers": 0},
        "n_decoder_layers is 0, but the decoder family needs at least 1.",
    ),
    ({"query_key_norm": True}, "query_key_norm is for self-attention whose positions are not "),
    ({"window_layers": "wx"}, "window_layers is 'wx', but must be all, alternate, or letters f "),
    ({"rotary_layers": ""}, "rotary_layers is '', but must be all, or letters r (rotary) and n "),
    ({"parallel": True}, "parallel sublayers read norms of a block's input; set norm_position = "),
    ({"first_norm": False}, "the first layer can only do without its norm where that comes before"),
    ({"n_experts": 2, "n_experts_used": 3}, "n_experts_used (3) is more than n_experts (2); a "),
    ({"rotary_window_base": 10.0}, "rotary_window_base is for a stack alone, of which an encoder-"),
    ({"rotary_short_factors": [1.0]}, "rotary_short_factors and rotary_long_factors have 1 and 0 "),
    ({"head_layer": True}, "head_layer is for encoders, but the family is 'encoder-decoder'; "),
]


@pytest.mark.parametrize(("values", "message"), MISTAKES, ids=str)
def test_mistakes(values, message):
    with pytest.raises(UserError) as error:
        ModelConfig.from_dict(values)
    assert str(error.value).startswith(f"model: {message}")
    assert str(error.value)[-1] in ".?"


def test_a_far_name_gets_the_list_and_the_file_is_named():
    words = r"^my/config\.json: unknown key 'colour'; it may be one of .*d_model.*tie"
    with pytest.raises(UserError, match=words):
        ModelConfig.from_dict({"colour": 1}, where="my/config.json")


def test_derived_sizes():
    config = ModelConfig(d_model=48, n_heads=6)
    assert (config.kv_heads, config.d_head) == (6, 8)
    assert ModelConfig(d_model=48, n_heads=6, n_kv_heads=2).kv_heads == 2


def test_the_trained_length_follows_from_the_factor():
    assert ModelConfig(max_length=1024).trained_length == 1024
    assert ModelConfig(max_length=1024, rotary_factor=4.0).trained_length == 256
    scaled = ModelConfig(max_length=1024, rotary_factor=4.0, rotary_trained_length=200)
    assert scaled.trained_length == 200


def test_windows_of_layers():
    def windows(**choices):
        return [ModelConfig(**choices).window_of(layer) for layer in range(4)]

    assert windows() == [0, 0, 0, 0]
    assert windows(window=8) == [8, 8, 8, 8]
    assert windows(window=8, window_layers="alternate") == [0, 8, 0, 8]
    assert windows(window_layers="alternate") == [0, 0, 0, 0]


def test_round_trip():
    config = ModelConfig(norm="rms", d_model=64, dropout=0.25, tie="none", source_vocab_size=7)
    plain = json.loads(json.dumps(config.to_dict()))
    assert set(plain) == {field.name for field in dataclasses.fields(ModelConfig)}
    assert ModelConfig.from_dict(plain) == config
    assert ModelConfig.from_dict({}) == ModelConfig()


def test_presets_are_the_papers():
    base, big = preset("transformer-base"), preset("transformer-big")
    sizes = ("d_model", "n_heads", "d_head", "d_ff", "dropout")
    assert [getattr(base, size) for size in sizes] == [512, 8, 64, 2048, 0.1]
    assert [getattr(big, size) for size in sizes] == [1024, 16, 64, 4096, 0.3]
    for config in (base, big):
        assert config.n_encoder_layers == config.n_decoder_layers == 6
        assert (config.norm_position, config.norm, config.activation) == ("post", "layer", "relu")
        assert (config.positions, config.tie, config.embedding_scale) == ("sinusoidal", "all", True)


def test_unknown_presets():
    words = "model: unknown preset 'transfomer-base'; did you mean 'transformer-base'"
    with pytest.raises(UserError, match=words):
        preset("transfomer-base")
    with pytest.raises(UserError, match="unknown key 'n_head'; did you mean 'n_heads'"):
        preset("transformer-base", n_head=4)
