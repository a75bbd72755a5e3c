"""Phi-3 (Abdin et al. 2024) and Phi-4-mini: Llama with fused matrices and LongRoPE."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.angles import (
    LONGROPE,
    read_angles,
    read_longrope,
    write_angles,
    write_longrope,
)
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

FUSED: Table = {
    **LAYER,
    "self_attention.query_key_value": "self_attn.qkv_proj",
    "feed_forward.inner": "mlp.gate_up_proj",
}
KINDS = {"su": LONGROPE, "yarn": LONGROPE, LONGROPE: LONGROPE, "default": "default"}
TRAINED = 4096  # tokens, where a config does not say it


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Phi-3's config in our words; it calls LongRoPE by three names."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = KINDS[
        wanted(
            {"rope_type": rope.get("rope_type") or rope.get("type")}, "rope_type", KINDS, "default"
        )
    ]
    usual = {
        "original_max_position_embeddings": TRAINED,
        "max_position_embeddings": TRAINED,
        **config,
    }
    angles = read_longrope(usual) if kind == LONGROPE else read_angles(config)
    plain = {**config, "rope_scaling": None, "rope_parameters": None, "partial_rotary_factor": None}
    return {
        **llama_values({"rms_norm_eps": 1e-5, **plain}),
        "n_kv_heads": read_groups(config, 0),
        "max_length": usual["max_position_embeddings"],
        "window": config.get("sliding_window") or 0,
        "dropout": float(config.get("resid_pdrop") or 0.0),
        **angles,
    }


def write_config(config: ModelConfig) -> Values:
    """Phi-3's config, from ours."""
    longrope = config.rotary_scaling == LONGROPE
    trained = config.trained_length if longrope else config.max_length
    length = round(trained * config.rotary_factor) if longrope else config.max_length
    return {
        **llama_config(config),
        "max_position_embeddings": length,
        "original_max_position_embeddings": trained,
        "sliding_window": config.window or None,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "rope_parameters": write_longrope(config) if longrope else write_angles(config),
    }


PHI3 = like_llama("Phi-3", "phi3", "Phi3", read_config, write_config, replace(RULES, block=FUSED))
