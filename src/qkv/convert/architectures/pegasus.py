"""Pegasus (Zhang et al. 2020): Marian's waves with norms in front; it writes summaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture, Spare, Values, wanted
from qkv.convert.architectures.bart import spare as bart_spare
from qkv.convert.architectures.marian import COPIES, both_config, both_values, frame
from qkv.convert.architectures.marian import rules as common_rules
from qkv.convert.architectures.mbart import final_norms
from qkv.convert.architectures.name_tables import Rule
from qkv.model.positions import sinusoid_table


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Pegasus' config in our words."""
    wanted(config, "static_position_embeddings", (True,), True)
    wanted(config, "normalize_embedding", (False,), False)
    return {**both_values(config, names, "pre"), "positions": "sinusoidal_halves"}


def write_config(config: ModelConfig) -> Values:
    """Pegasus' config, from ours."""
    return {**both_config(config), "static_position_embeddings": True}


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where Pegasus keeps each weight."""
    yield from common_rules(config, head)
    yield from final_norms(config)


def spare(config: ModelConfig, head: str) -> Spare:
    """The waves lie in their files, though nobody learns them."""
    return {
        **bart_spare(config, head),
        "model.encoder.embed_positions.weight": sinusoid_table(config),
        "model.decoder.embed_positions.weight": sinusoid_table(config),
    }


PEGASUS = Architecture(
    name="Pegasus",
    model_type="pegasus",
    family="encoder-decoder",
    classes={"seq2seq": "PegasusForConditionalGeneration"},
    bodies=("PegasusModel",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    frame=frame,
    prefix="model.",
    ignored=r"(model\.)?(encoder|decoder)\.embed_positions\.weights?",
    copies=COPIES,
    spare=spare,
)
