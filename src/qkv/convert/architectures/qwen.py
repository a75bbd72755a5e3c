"""Qwen2 (Yang et al. 2024), with biases on q, k and v, and Qwen3 (2025), with norms of q and k."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture, Values, wanted
from qkv.convert.architectures.llama import (
    LLAMA,
    llama_config,
    llama_values,
    read_groups,
    rules,
)
from qkv.convert.architectures.name_tables import Rule, Table, layers
from qkv.convert.architectures.windows import read_windows, write_layer_types

NORMS: Table = {
    "self_attention.norm.query": "self_attn.q_norm",
    "self_attention.norm.key": "self_attn.k_norm",
}


def _values(config: Mapping[str, Any]) -> Values:
    n_layers = config["num_hidden_layers"]
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    first = min(config.get("max_window_layers", 28), n_layers)
    return {
        **llama_values(config),
        **read_windows(config, window or 0, "f" * first + "w" * (n_layers - first)),
        "n_kv_heads": read_groups(config, 32),
        "max_length": config.get("max_position_embeddings", 32_768),
    }


def _config(config: ModelConfig) -> Values:
    return {
        **llama_config(config),
        "use_sliding_window": bool(config.window),
        "sliding_window": config.window or None,
        "layer_types": write_layer_types(config),
    }


def read_qwen2(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Qwen2's config in our words."""
    return {**_values(config), "qkv_bias": "always"}


def read_qwen3(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Qwen3's config in our words."""
    wanted(config, "attention_bias", (False,), False)
    return {**_values({"head_dim": 128, **config}), "query_key_norm": True}


def norm_rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Llama's rules, and those of the norms of queries and keys."""
    yield from rules(config, head)
    yield from layers(
        config, "decoder.blocks.{}.", "model.layers.{}.", NORMS, config.n_decoder_layers
    )


QWEN2 = Architecture(
    name="Qwen2",
    model_type="qwen2",
    family="decoder",
    classes={"causal": "Qwen2ForCausalLM"},
    bodies=("Qwen2Model",),
    read_config=read_qwen2,
    write_config=_config,
    rules=rules,
    prefix="model.",
    ignored=LLAMA.ignored,
    copies=LLAMA.copies,
)
QWEN3 = Architecture(
    name="Qwen3",
    model_type="qwen3",
    family="decoder",
    classes={"causal": "Qwen3ForCausalLM"},
    bodies=("Qwen3Model",),
    read_config=read_qwen3,
    write_config=_config,
    rules=norm_rules,
    prefix="model.",
    ignored=LLAMA.ignored,
    copies=LLAMA.copies,
)
