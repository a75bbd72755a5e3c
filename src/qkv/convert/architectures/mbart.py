"""mBART (Liu et al. 2020) and mBART-50: BART with norms in front, and a token for each language."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import Values, wanted
from qkv.convert.architectures.bart import BART
from qkv.convert.architectures.bart import rules as bart_rules
from qkv.convert.architectures.marian import both_config, both_values, frame
from qkv.convert.architectures.marian import rules as common_rules
from qkv.convert.architectures.name_tables import Rule, Table, modules

FINAL: Table = {"norm": "layer_norm"}  # after each stack


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """mBART's config in our words."""
    wanted(config, "static_position_embeddings", (False,), False)
    wanted(config, "normalize_embedding", (True,), True)
    return {**PRESETS["bart-base"], **both_values(config, names, "pre")}


def final_norms(config: ModelConfig) -> Iterator[Rule]:
    """The norm after each stack whose blocks are pre-norm."""
    for side in ("encoder.", "decoder."):
        yield from modules(config, side, f"model.{side}", FINAL)


def pre_norm_rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where models whose positions are computed keep each weight: Marian's names, and the norms."""
    yield from common_rules(config, head)
    yield from final_norms(config)


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where mBART keeps each weight."""
    yield from bart_rules(config, head)
    yield from final_norms(config)


MBART = replace(
    BART,
    name="mBART",
    model_type="mbart",
    classes={"seq2seq": "MBartForConditionalGeneration"},
    bodies=("MBartModel",),
    read_config=read_config,
    write_config=both_config,
    rules=rules,
    frame=frame,
    languages=r"([a-z]{2,3}_[A-Z]{2})()",
)
