"""First weights as GPT-2 draws them; the paper's are tested with the families."""

import math

import pytest
import torch
from torch import Tensor, nn

from qkv.config import PRESETS, preset
from qkv.model import build_model
from tests.model.tiny import tiny_config

SIZES = {"vocab_size": 500, "d_model": 64, "d_ff": 128, "max_length": 300, "init": "normal"}


def normal(family: str = "decoder", **choices: object) -> nn.Module:
    return build_model(tiny_config(**{**SIZES, "family": family, **choices}))


def assert_normal(weight: Tensor, deviation: float) -> None:
    """The mean and spread of a normal draw, its tails and its middle."""
    spread = deviation / math.sqrt(weight.numel())
    assert abs(weight.mean().item()) < 5 * spread
    assert weight.std().item() == pytest.approx(deviation, rel=0.05)
    assert (weight.abs() < deviation).float().mean().item() == pytest.approx(0.683, abs=0.03)
    assert weight.abs().max() > 3 * deviation


@pytest.mark.parametrize("layers", [1, 2, 8])
@pytest.mark.parametrize("tie", ["output", "none"])
@pytest.mark.parametrize("gated", [False, True])
def test_matrices_are_normal_and_what_sublayers_add_is_smaller(layers, tie, gated):
    """0.02 everywhere, but 0.02/√2N where one of 2N sublayers adds to the residual stream."""
    model = normal(
        n_encoder_layers=0,
        n_decoder_layers=layers,
        tie=tie,
        gated=gated,
        positions="learned",
        n_kv_heads=2,
    )
    for block in model.decoder.blocks:
        assert_normal(block.self_attention.query_key_value.weight, 0.02)
        assert_normal(block.feed_forward.inner.weight, 0.02)
        assert_normal(block.self_attention.output.weight, 0.02 / math.sqrt(2 * layers))
        assert_normal(block.feed_forward.outer.weight, 0.02 / math.sqrt(2 * layers))
    assert_normal(model.embedding.table.weight, 0.02)
    assert_normal(model.output.projection.weight, 0.02)
    assert_normal(model.decoder.positions.table.weight, 0.02)


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_only_layers_that_are_built_count(family):
    model = normal(family, n_encoder_layers=2, n_decoder_layers=2)
    (stack,) = (child for name, child in model.named_children() if name.endswith("coder"))
    assert_normal(stack.blocks[0].feed_forward.outer.weight, 0.02 / math.sqrt(4))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("init", ["normal", "glorot"])
def test_biases_start_at_zero_and_norms_at_one(init, norm):
    model = normal(init=init, output_bias=True, norm=norm, norm_position="pre")
    seen = 0
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert (module.bias == 0).all()
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            seen += 1
            assert (module.weight == 1).all()
            assert not isinstance(module, nn.LayerNorm) or (module.bias == 0).all()
    assert seen == 5


def test_a_fresh_model_knows_nothing():
    """Small first weights make every token about as likely, so the loss starts at ln V."""
    model = normal(n_encoder_layers=0, positions="rotary", norm_position="pre").eval()
    row = torch.randint(500, (4, 50))
    loss = nn.functional.cross_entropy(model(row).flatten(0, 1), torch.randint(500, (200,)))
    assert loss.item() == pytest.approx(math.log(500), rel=0.02)


@pytest.mark.parametrize("name", PRESETS)
def test_decoders_start_normal_and_transformers_as_the_paper(name):
    assert preset(name).init == ("glorot" if name.startswith("transformer") else "normal")
