"""Presets: the architectures of their papers, with as many weights as those who made them say."""

import dataclasses

import pytest
import torch

from qkv.config import PRESETS, ModelConfig, preset
from qkv.model import Decoder, Layout, build_model

# The released checkpoints' own counts; a tied matrix counts once.
SIZES = {
    "gpt": (40_478, 116_534_784),
    "gpt2": (50_257, 124_439_808),
    "gpt2-medium": (50_257, 354_823_168),
    "gpt2-large": (50_257, 774_030_080),
    "gpt2-xl": (50_257, 1_557_611_200),
    "llama-7b": (32_000, 6_738_415_616),
    "llama-1b": (128_256, 1_235_814_400),
    "smollm2-135m": (49_152, 134_515_008),
}
DECODERS = [name for name in PRESETS if not name.startswith("transformer")]
PARTS = {
    "gpt": {
        "norm": "layer", "norm_position": "post", "positions": "learned",
        "activation": "gelu_tanh", "gated": False, "bias": True, "max_length": 512, "window": 0,
    },
    "gpt2": {
        "norm": "layer", "norm_position": "pre", "positions": "learned",
        "activation": "gelu_tanh", "gated": False, "bias": True, "max_length": 1024, "window": 0,
    },
    "gpt3": {
        "norm": "layer", "norm_position": "pre", "positions": "learned", "max_length": 2048,
        "window_layers": "alternate",
    },
    "llama-7b": {
        "norm": "rms", "norm_position": "pre", "positions": "rotary", "activation": "silu",
        "gated": True, "bias": False, "tie": "none", "max_length": 2048, "rotary_base": 10_000.0,
        "rotary_scaling": "none", "kv_heads": 32, "d_head": 128,
    },
    "llama-1b": {
        "tie": "output", "rotary_base": 500_000.0, "rotary_scaling": "llama3",
        "rotary_factor": 32.0, "trained_length": 8192, "rotary_slow": 1.0, "max_length": 131_072,
        "kv_heads": 8, "d_head": 64,
    },
    "smollm2-135m": {
        "tie": "output", "rotary_base": 100_000.0, "rotary_scaling": "none", "max_length": 8192,
        "kv_heads": 3, "d_head": 64,
    },
}  # fmt: skip


def n_parameters(config: ModelConfig) -> int:
    """Counted on the device without memory, so that 175 billion cost nothing."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(config).parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_config_that_survives_its_file(name):
    config = preset(name)
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert {key: getattr(config, key) for key in PRESETS[name]} == PRESETS[name]


@pytest.mark.parametrize("name", PARTS)
def test_presets_have_the_parts_of_their_papers(name):
    config = preset(name)
    assert {part: getattr(config, part) for part in PARTS[name]} == PARTS[name]


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_the_size_of_the_checkpoints(name):
    vocab_size, count = SIZES[name]
    assert n_parameters(preset(name, vocab_size=vocab_size)) == count


def test_gpt3_has_175_billion_parameters():
    """Table 2.1 of Brown et al. 2020."""
    count = n_parameters(preset("gpt3", vocab_size=50_257))
    assert count == pytest.approx(175e9, rel=0.005)
    assert preset("gpt3").d_head == 128
    small = n_parameters(preset("gpt3-small", vocab_size=50_257))
    assert small == pytest.approx(125e6, rel=0.01)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_have_no_encoder_and_no_scaled_embedding(name):
    config = preset(name)
    assert (config.family, config.n_encoder_layers) == ("decoder", 0)
    assert not config.embedding_scale and not config.output_bias


@pytest.mark.parametrize("name", DECODERS)
def test_the_architectures_run_at_any_size(name):
    """Every decoder's parts, made tiny: logits of the right shape, and gradients everywhere."""
    d_head = 4 if preset(name).positions == "rotary" else 3
    kv_heads = 2 if preset(name).n_kv_heads else 0
    config = dataclasses.replace(
        preset(name), vocab_size=11, d_model=4 * d_head, n_heads=4, n_kv_heads=kv_heads, d_ff=8,
        n_decoder_layers=2, max_length=32,
    )  # fmt: skip
    model = build_model(config)
    assert isinstance(model, Decoder)
    logits = model(torch.randint(11, (2, 32)), Layout())
    assert logits.shape == (2, 32, 11)
    logits.square().mean().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("name", ["gpt2-mini", "llama-mini", "llama-tiny"])
def test_small_presets_are_small(name):
    """Of a size that one processor trains."""
    assert n_parameters(preset(name, vocab_size=8000)) < 15e6
