"""OPT (Zhang et al. 2022)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    THEIR_ACTIVATIONS,
    Architecture,
    Values,
    activation,
    wanted,
)
from qkv.convert.architectures.name_tables import Part, Rule, Table, after, layers, modules

BODY: Table = {
    "embedding.table": "embed_tokens",
    "decoder.positions.table": Part("embed_positions", after(2)),  # as in BART
    "decoder.norm": "final_layer_norm",
}
LAYER: Table = {
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": "self_attn.out_proj",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
OUTPUT: Table = {"output.projection": "lm_head"}
EPSILON = 1e-5  # they have no other


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """OPT's config in our words."""
    width = config["hidden_size"]
    wanted(config, "word_embed_proj_dim", (width,), width)  # other than opt-350m's
    wanted(config, "do_layer_norm_before", (True,), True)
    wanted(config, "_remove_final_layer_norm", (False,), False)
    wanted(config, "layer_norm_elementwise_affine", (True,), True)
    return {
        **PRESETS["gpt2"],
        "n_decoder_layers": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "d_model": width,
        "n_heads": config["num_attention_heads"],
        "d_ff": config["ffn_dim"],
        "max_length": config.get("max_position_embeddings", 2048),
        "activation": activation(config, "activation_function", "relu"),
        "norm_epsilon": EPSILON,
        "bias": config.get("enable_bias", True),
        "dropout": float(config.get("dropout", 0.1)),
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
        "tie": "output" if config.get("tie_word_embeddings", True) else "none",
    }


def write_config(config: ModelConfig) -> Values:
    """OPT's config, from ours."""
    return {
        "num_hidden_layers": config.n_decoder_layers,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "word_embed_proj_dim": config.d_model,
        "num_attention_heads": config.n_heads,
        "ffn_dim": config.d_ff,
        "max_position_embeddings": config.max_length,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "enable_bias": config.bias,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tie in ("all", "output"),
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where they keep each weight."""
    yield from modules(config, "", "model.decoder.", BODY)
    yield from layers(
        config, "decoder.blocks.{}.", "model.decoder.layers.{}.", LAYER, config.n_decoder_layers
    )
    yield from modules(config, "", "", OUTPUT)


OPT = Architecture(
    name="OPT",
    model_type="opt",
    family="decoder",
    classes={"causal": "OPTForCausalLM"},
    bodies=("OPTModel",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    prefix="model.",
    copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
)
