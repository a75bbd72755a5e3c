"""Presets: the architectures of their papers, with as many weights as those who made them say."""

import dataclasses

import pytest
import torch
import transformers

from qkv.config import PRESETS, ModelConfig, preset
from qkv.convert.architectures import ARCHITECTURES
from qkv.model import Encoder, build_model

PRE_TRAINING = {"head": "masked", "pair_head": True}
# The released checkpoints' own counts, with what differs; a tied matrix counts once.
SIZES = [
    ("gpt", {"vocab_size": 40_478}, 116_534_784),
    ("gpt2", {"vocab_size": 50_257}, 124_439_808),
    ("gpt2-medium", {"vocab_size": 50_257}, 354_823_168),
    ("gpt2-large", {"vocab_size": 50_257}, 774_030_080),
    ("gpt2-xl", {"vocab_size": 50_257}, 1_557_611_200),
    ("llama-7b", {"vocab_size": 32_000}, 6_738_415_616),
    ("llama-1b", {"vocab_size": 128_256}, 1_235_814_400),
    ("smollm2-135m", {"vocab_size": 49_152}, 134_515_008),
    # Some encoders have a pooler where ours has none, or the reverse.
    ("bert-base", {"vocab_size": 30_522}, 109_482_240),
    ("bert-base", {"vocab_size": 30_522, **PRE_TRAINING}, 110_106_428),
    ("bert-large", {"vocab_size": 30_522}, 335_141_888),
    # One segment for all tokens, and positions that begin after the padding's
    ("roberta-base", {"vocab_size": 50_265, "n_segments": 1, "max_length": 514}, 124_645_632),
    ("albert-base", {"vocab_size": 30_000}, 11_683_584),
    ("deberta-base", {"vocab_size": 128_100, "pooler": "none"}, 183_831_552),
    ("vit-base", {"pooler": "tanh"}, 86_389_248),
    ("vit-base", {"head": "sequence", "n_labels": 1000}, 86_567_656),
]
BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
DEBERTA = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
"""What transformers builds: our preset with what differs, and what their config is told."""
THEIRS: dict[str, tuple[transformers.PretrainedConfig, set[str]]] = {
    "gpt": (transformers.OpenAIGPTConfig(), set()),
    "gpt2": (transformers.GPT2Config(), set()),
    "llama-7b": (transformers.LlamaConfig(rms_norm_eps=1e-5), set()),  # as it was released
    # A body alone has no pooler there, or none is read.
    "bert-base": (transformers.BertConfig(), {"pooler"}),
    "roberta-base": (
        transformers.RobertaConfig(
            max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
        ),
        {"pooler", "n_segments", "pad_id"},
    ),
    "albert-base": (transformers.AlbertConfig(**BASE), {"pooler"}),
    "deberta-base": (transformers.DebertaV2Config(**BASE, **DEBERTA), {"pooler"}),
    "vit-base": (transformers.ViTConfig(), set()),
    "t5-small": (transformers.T5Config(), {"d_key"}),
    "bart-large": (transformers.BartConfig(), {"output_bias", "start_id"}),
}
"""Their configs, and what differs in our preset of the same architecture."""
PARTS = {
    "gpt3": {"max_length": 2048, "window": 256, "window_layers": "alternate"},
    "llama-1b": {"rotary_base": 5e5, "rotary_scaling": "llama3", "trained_length": 8192},
    "smollm2-135m": {"rotary_base": 1e5, "rotary_scaling": "none", "max_length": 8192},
}


def n_parameters(config: ModelConfig) -> int:
    """Counted on the device without memory, so that 175 billion cost nothing."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(config).parameters())


@pytest.mark.parametrize("name", THEIRS)
def test_presets_have_the_parts_that_transformers_has(name):
    theirs, differing = THEIRS[name]
    architecture = ARCHITECTURES[theirs.model_type]
    values, ours = architecture.read_config(theirs.to_dict(), [], "none"), preset(name)
    assert len(values) > 15
    other = {part for part, value in values.items() if getattr(ours, part) != value}
    assert other - {"vocab_size"} == differing


@pytest.mark.parametrize("name", PARTS)
def test_presets_have_the_parts_of_their_papers(name):
    config = preset(name)
    assert {part: getattr(config, part) for part in PARTS[name]} == PARTS[name]


@pytest.mark.parametrize(("name", "differences", "count"), SIZES, ids=str)
def test_presets_have_the_size_of_the_checkpoints(name, differences, count):
    assert n_parameters(preset(name, **differences)) == count


def test_gpt3_has_175_billion_parameters():
    """Table 2.1 of Brown et al. 2020."""
    count = n_parameters(preset("gpt3", vocab_size=50_257))
    assert count == pytest.approx(175e9, rel=0.005)
    assert preset("gpt3").d_head == 128
    small = n_parameters(preset("gpt3-small", vocab_size=50_257))
    assert small == pytest.approx(125e6, rel=0.01)


ONE_STACK = {name: values["family"] for name, values in PRESETS.items() if "family" in values}


@pytest.mark.parametrize("name", ONE_STACK)
def test_one_stack_has_no_other_and_no_scaled_embedding(name):
    config = preset(name)
    layers = {"encoder": config.n_encoder_layers, "decoder": config.n_decoder_layers}
    assert [stack for stack, n_layers in layers.items() if n_layers] == [config.family]
    assert not config.embedding_scale and not config.output_bias
    assert config.head == "none" and not config.pair_head


@pytest.mark.parametrize("name", ONE_STACK)
def test_the_architectures_run_at_any_size(name):
    """Every stack's parts, made tiny: outputs of the right shape, and gradients everywhere."""
    usual = preset(name)
    config = dataclasses.replace(
        usual,
        vocab_size=11,
        d_model=16 if usual.positions == "rotary" else 12,
        n_heads=4,
        n_kv_heads=2 if usual.n_kv_heads else 0,
        d_ff=8,
        d_embedding=6 if usual.d_embedding else 0,
        max_length=32,
        relative_buckets=8,
        dropout=0.0,
        **{f"n_{usual.family}_layers": 2},
        **({"head": "sequence", "n_labels": 3} if usual.family == "encoder" else {}),
    )
    model = build_model(config)
    inputs = torch.randint(11, (4, 32))
    if config.patch_size:
        inputs = torch.randn(4, config.n_channels, config.image_size, config.image_size)
    said = model(inputs)
    assert said.shape == ((4, 3) if isinstance(model, Encoder) else (4, 32, 11))
    said.square().mean().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith(("-mini", "-tiny"))])
def test_small_presets_are_small(name):
    """Of a size that one processor trains."""
    assert n_parameters(preset(name, vocab_size=8000)) < 15e6
