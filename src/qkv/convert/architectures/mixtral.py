"""Mixtral (Jiang et al. 2024): Mistral with experts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Values
from qkv.convert.architectures.llama import LAYER, RULES, like_llama, read_mistral, write_mistral
from qkv.convert.architectures.name_tables import Rule, Table, layers

ATTENTION: Table = {
    **{ours: theirs for ours, theirs in LAYER.items() if not ours.startswith("feed_forward.")},
    "feed_forward.router.projection": "block_sparse_moe.gate",
}
EXPERT: Table = {"inner": ("w1", "w3"), "outer": "w2"}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Mixtral's config in our words."""
    usual = {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "sliding_window": None}
    return {
        **read_mistral({**usual, **config}, names, head),
        "n_experts": config.get("num_local_experts", 8),
        "n_experts_used": config.get("num_experts_per_tok", 2),
    }


def write_config(config: ModelConfig) -> Values:
    """Mixtral's config, from ours."""
    return {
        **write_mistral(config),
        "num_local_experts": config.n_experts,
        "num_experts_per_tok": config.n_experts_used,
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where they keep each weight."""
    yield from replace(RULES, block=ATTENTION)(config, head)
    for layer in range(config.n_decoder_layers):
        yield from layers(
            config,
            f"decoder.blocks.{layer}.feed_forward.experts.{{}}.",
            f"model.layers.{layer}.block_sparse_moe.experts.{{}}.",
            EXPERT,
            config.n_experts,
        )


MIXTRAL = like_llama("Mixtral", "mixtral", "Mixtral", read_config, write_config, rules)
