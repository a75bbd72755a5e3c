"""BLOOM (Le Scao et al. 2022)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
from qkv.convert.architectures.name_tables import Names, Part, Rule, Table, by_head

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


FIELDS: Fields = {
    "vocab_size": "vocab_size",
    "max_length": Field("seq_length", 2048),
    "norm_epsilon": Field("layer_norm_epsilon", 1e-5),
    "dropout": Field("hidden_dropout", 0.0),
    "attention_dropout": Field("attention_dropout", 0.0),
    "tie": Field("tie_word_embeddings", True),
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """BLOOM's config in our words; its feed-forward layers are always four times as wide."""
    wanted(config, "apply_residual_connection_post_layernorm", (False,), False)
    width = config.get("n_embed") or config["hidden_size"]
    return {
        **PRESETS["gpt2"],
        **read_fields(config, FIELDS),
        "n_decoder_layers": config.get("n_layer") or config["num_hidden_layers"],
        "d_model": width,
        "n_heads": config.get("n_head") or config["num_attention_heads"],
        "d_ff": 4 * width,
        "positions": "alibi",
        "embedding_norm": True,
    }


def write_config(config: ModelConfig) -> Values:
    """BLOOM's config, from ours."""
    return {
        **write_fields(config, FIELDS),
        "n_layer": config.n_decoder_layers,
        "hidden_size": config.d_model,
        "n_head": config.n_heads,
    }


def rules(config: ModelConfig, head: str) -> Iterable[Rule]:
    """Where they keep each weight."""
    fused = Part("self_attention.query_key_value", by_head(config.n_heads))
    table = {**LAYER, "self_attention.query_key_value": fused}
    return Names("decoder", "transformer.", BODY, "h.{}.", table, HEADS)(config, head)


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
