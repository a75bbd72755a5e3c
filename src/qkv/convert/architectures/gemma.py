"""Gemma (2024), Gemma 2 (2024) and the text models of Gemma 3 (2025)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.angles import read_angles_by_type, write_angles_by_type
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
from qkv.convert.architectures.qwen import NORMS
from qkv.convert.architectures.windows import read_windows, write_layer_types

BOTH_NORMS: Table = {
    **LAYER,
    "self_attention_residual.output_norm": "post_attention_layernorm",
    "feed_forward_residual.norm": "pre_feedforward_layernorm",
    "feed_forward_residual.output_norm": "post_feedforward_layernorm",
}
THREE: Table = {**BOTH_NORMS, **NORMS}
FULL_BASE = ("rope_theta", 1_000_000.0)
WINDOW_BASE = ("rope_local_base_freq", 10_000.0)


def _values(config: Mapping[str, Any], name: str, groups: int) -> Values:
    """The values that all three share; `name` is that of the activation."""
    wanted(config, "attention_bias", (False,), False)
    wanted(config, "use_bidirectional_attention", (False,), False)
    usual = {"head_dim": 256, "tie_word_embeddings": True, **config}
    return {
        **llama_values({**usual, "hidden_act": config.get(name) or "gelu_pytorch_tanh"}),
        "n_kv_heads": read_groups(config, groups),
        "norm": "rms_plus_one",
        "embedding_scale": True,
        "round_embedding_scale": True,
    }


def read_gemma(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Gemma's config in our words; it says "gelu", and means the approximation with tanh."""
    said = config.get("hidden_activation") or config.get("hidden_act")
    named = {**config, "hidden_act": "gelu_pytorch_tanh" if said == "gelu" else said}
    return {
        **_values(named, "hidden_act", 16),
        "max_length": config.get("max_position_embeddings", 8192),
    }


def read_gemma2(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Gemma 2's config in our words."""
    n_layers = config["num_hidden_layers"]
    return {
        **_values(config, "hidden_activation", 4),
        **read_windows(
            config, config.get("sliding_window", 4096) or 0, ("wf" * n_layers)[:n_layers]
        ),
        **_caps(config, 50.0, 30.0),
        "norm_position": "both",
        "max_length": config.get("max_position_embeddings", 8192),
    }


def read_gemma3(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Gemma 3's config in our words; layers with a window have a rotary base of their own."""
    wanted(config, "attn_logit_softcapping", (None,), None)
    n_layers, period = config["num_hidden_layers"], config.get("sliding_window_pattern") or 6
    usual = "".join("f" if layer % period == period - 1 else "w" for layer in range(n_layers))
    windows = read_windows(config, config.get("sliding_window", 4096) or 0, usual)
    angles, local = read_angles_by_type(config, FULL_BASE, WINDOW_BASE)
    return {
        **_values({**config, **angles}, "hidden_activation", 4),
        **windows,
        **_caps(config, 0.0, 0.0),
        "rotary_window_base": local if windows["window"] else 0.0,
        "norm_position": "both",
        "query_key_norm": True,
        "max_length": config.get("max_position_embeddings", 131_072),
    }


def _caps(config: Mapping[str, Any], scores: float, logits: float) -> Values:
    """What scores are divided by, and the caps of scores and logits."""
    divisor = config.get("query_pre_attn_scalar", 256)
    return {
        "score_divisor": 0.0 if divisor == config.get("head_dim", 256) else float(divisor),
        "score_cap": float(config.get("attn_logit_softcapping", scores) or 0.0),
        "logit_cap": float(config.get("final_logit_softcapping", logits) or 0.0),
    }


def _config(config: ModelConfig) -> Values:
    """The config fields that all three share, from ours."""
    values = llama_config(config)
    activation = values.pop("hidden_act")
    named = "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else activation
    return {**values, "hidden_act": named, "hidden_activation": named}


def write_gemma2(config: ModelConfig) -> Values:
    """Gemma 2's config, from ours."""
    divisor = config.score_divisor or config.d_head
    return {
        **_config(config),
        "query_pre_attn_scalar": int(divisor) if divisor == int(divisor) else divisor,
        "attn_logit_softcapping": config.score_cap or None,
        "final_logit_softcapping": config.logit_cap or None,
        "sliding_window": config.window or None,
        "layer_types": write_layer_types(config),
    }


def write_gemma3(config: ModelConfig) -> Values:
    """Gemma 3's config, from ours."""
    return {**write_gemma2(config), "rope_parameters": write_angles_by_type(config)}


GEMMA = like_llama("Gemma", "gemma", "Gemma", read_gemma, _config)
GEMMA2 = like_llama(
    "Gemma 2", "gemma2", "Gemma2", read_gemma2, write_gemma2, replace(RULES, block=BOTH_NORMS)
)
GEMMA3 = like_llama(
    "Gemma 3",
    "gemma3_text",
    "Gemma3",
    read_gemma3,
    write_gemma3,
    replace(RULES, block=THREE),
    bodies=("Gemma3TextModel",),
)
