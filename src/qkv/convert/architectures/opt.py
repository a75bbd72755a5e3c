"""OPT (Zhang et al. 2022)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    Architecture,
    Field,
    Fields,
    Values,
    read_fields,
    wanted,
    write_fields,
)
from qkv.convert.architectures.gpt import HEADS
from qkv.convert.architectures.marian import ENCODER_LAYER
from qkv.convert.architectures.name_tables import Names, Part, Table, after

BODY: Table = {
    "embedding.table": "embed_tokens",
    "decoder.positions.table": Part("embed_positions", after(2)),  # as in BART
    "decoder.norm": "final_layer_norm",
}
EPSILON = 1e-5  # they have no other


FIELDS: Fields = {
    "n_decoder_layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "d_ff": "ffn_dim",
    "max_length": Field("max_position_embeddings", 2048),
    "activation": Field("activation_function", "relu"),
    "bias": Field("enable_bias", True),
    "dropout": Field("dropout", 0.1),
    "attention_dropout": Field("attention_dropout", 0.0),
    "tie": Field("tie_word_embeddings", True),
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """OPT's config in our words."""
    width = config["hidden_size"]
    wanted(config, "word_embed_proj_dim", (width,), width)  # other than opt-350m's
    wanted(config, "do_layer_norm_before", (True,), True)
    wanted(config, "_remove_final_layer_norm", (False,), False)
    wanted(config, "layer_norm_elementwise_affine", (True,), True)
    return {**PRESETS["gpt2"], **read_fields(config, FIELDS), "norm_epsilon": EPSILON}


def write_config(config: ModelConfig) -> Values:
    """OPT's config, from ours."""
    return {**write_fields(config, FIELDS), "word_embed_proj_dim": config.d_model}


OPT = Architecture(
    name="OPT",
    model_type="opt",
    family="decoder",
    classes={"causal": "OPTForCausalLM"},
    bodies=("OPTModel",),
    read_config=read_config,
    write_config=write_config,
    rules=Names("decoder", "model.decoder.", BODY, "layers.{}.", ENCODER_LAYER, HEADS),
    prefix="model.",
    copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
)
