"""M2M100 (Fan et al. 2021) and NLLB (2022): norms in front, fairseq's waves, language tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Values
from qkv.convert.architectures.marian import both_config, both_values
from qkv.convert.architectures.mbart import MBART, pre_norm_rules
from qkv.errors import UserError


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """M2M100's config in our words."""
    said = {"activation_function": "relu", "scale_embedding": True, **config}
    return {
        **both_values(said, names, "pre"),
        "positions": "sinusoidal_fairseq",
        "pad_id": config["pad_token_id"],
        "output_bias": False,
    }


def write_config(config: ModelConfig) -> Values:
    """M2M100's config, from ours."""
    if config.pad_id in (config.bos_id, config.eos_id):
        raise UserError("M2M100 has no place for a token that is also the padding.")
    return {**both_config(config), "pad_token_id": config.pad_id}


M2M100 = replace(
    MBART,
    name="M2M100",
    model_type="m2m_100",
    classes={"seq2seq": "M2M100ForConditionalGeneration"},
    bodies=("M2M100Model",),
    read_config=read_config,
    write_config=write_config,
    rules=pre_norm_rules,
    ignored=r"(model\.)?(encoder|decoder)\.(version|embed_positions\.weights?)",
    languages=r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})",  # M2M100's, or NLLB's
)
