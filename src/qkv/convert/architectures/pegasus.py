"""Pegasus (Zhang et al. 2020): Marian's waves with norms in front; it writes summaries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Spare, Values, wanted
from qkv.convert.architectures.bart import spare as bart_spare
from qkv.convert.architectures.marian import MARIAN, both_config, both_values
from qkv.convert.architectures.mbart import pre_norm_rules
from qkv.model.positions import sinusoid_table


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Pegasus' config in our words."""
    wanted(config, "static_position_embeddings", (True,), True)
    wanted(config, "normalize_embedding", (False,), False)
    return {**both_values(config, names, "pre"), "positions": "sinusoidal_halves"}


def write_config(config: ModelConfig) -> Values:
    """Pegasus' config, from ours."""
    return {**both_config(config), "static_position_embeddings": True}


def spare(config: ModelConfig, head: str) -> Spare:
    """The waves lie in their files, though nobody learns them."""
    return {
        **bart_spare(config, head),
        "model.encoder.embed_positions.weight": sinusoid_table(config),
        "model.decoder.embed_positions.weight": sinusoid_table(config),
    }


PEGASUS = replace(
    MARIAN,
    name="Pegasus",
    model_type="pegasus",
    classes={"seq2seq": "PegasusForConditionalGeneration"},
    bodies=("PegasusModel",),
    read_config=read_config,
    write_config=write_config,
    rules=pre_norm_rules,
    spare=spare,
)
