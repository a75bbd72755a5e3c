"""Qwen2 (Yang et al. 2024), with biases on q, k and v, and Qwen3 (2025), with norms of q and k."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Values, wanted
from qkv.convert.architectures.llama import (
    LAYER,
    RULES,
    like_llama,
    llama_config,
    llama_values,
    read_groups,
)
from qkv.convert.architectures.name_tables import Table
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


QWEN2 = like_llama("Qwen2", "qwen2", "Qwen2", read_qwen2, _config)
WITH_NORMS = replace(RULES, block={**LAYER, **NORMS})
QWEN3 = like_llama("Qwen3", "qwen3", "Qwen3", read_qwen3, _config, WITH_NORMS)
