"""BLOOM (Le Scao et al. 2022)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import Architecture, Values, wanted
from qkv.convert.architectures.name_tables import Part, Rule, Table, by_head, layers, modules

BODY: Table = {
    "embedding.table": "word_embeddings",
    "decoder.input_norm": "word_embeddings_layernorm",
    "decoder.norm": "ln_f",
}
LAYER: Table = {
    "self_attention.output": "self_attention.dense",
    "self_attention_residual.norm": "input_layernorm",
    "feed_forward.inner": "mlp.dense_h_to_4h",
    "feed_forward.outer": "mlp.dense_4h_to_h",
    "feed_forward_residual.norm": "post_attention_layernorm",
}
OUTPUT: Table = {"output.projection": "lm_head"}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """BLOOM's config in our words; its feed-forward layers are always four times as wide."""
    wanted(config, "apply_residual_connection_post_layernorm", (False,), False)
    width = config.get("n_embed") or config["hidden_size"]
    return {
        **PRESETS["gpt2"],
        "n_decoder_layers": config.get("n_layer") or config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "d_model": width,
        "n_heads": config.get("n_head") or config["num_attention_heads"],
        "d_ff": 4 * width,
        "max_length": config.get("seq_length", 2048),
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "positions": "alibi",
        "embedding_norm": True,
        "dropout": float(config.get("hidden_dropout") or 0.0),
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
        "tie": "output" if config.get("tie_word_embeddings", True) else "none",
    }


def write_config(config: ModelConfig) -> Values:
    """BLOOM's config, from ours."""
    return {
        "n_layer": config.n_decoder_layers,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "n_head": config.n_heads,
        "seq_length": config.max_length,
        "layer_norm_epsilon": config.norm_epsilon,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tie in ("all", "output"),
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where they keep each weight."""
    fused = Part("self_attention.query_key_value", by_head(config.n_heads))
    table = {**LAYER, "self_attention.query_key_value": fused}
    yield from modules(config, "", "transformer.", BODY)
    yield from layers(
        config, "decoder.blocks.{}.", "transformer.h.{}.", table, config.n_decoder_layers
    )
    yield from modules(config, "", "", OUTPUT)


BLOOM = Architecture(
    name="BLOOM",
    model_type="bloom",
    family="decoder",
    classes={"causal": "BloomForCausalLM"},
    bodies=("BloomModel",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.word_embeddings.weight"},
)
