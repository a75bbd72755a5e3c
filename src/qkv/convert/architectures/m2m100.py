"""M2M100 (Fan et al. 2021) and NLLB (2022): norms in front, fairseq's waves, language tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture, Values
from qkv.convert.architectures.bart import spare
from qkv.convert.architectures.marian import COPIES, both_config, both_values, frame
from qkv.convert.architectures.marian import rules as common_rules
from qkv.convert.architectures.mbart import final_norms
from qkv.convert.architectures.name_tables import Rule
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


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where M2M100 keeps each weight."""
    yield from common_rules(config, head)
    yield from final_norms(config)


M2M100 = Architecture(
    name="M2M100",
    model_type="m2m_100",
    family="encoder-decoder",
    classes={"seq2seq": "M2M100ForConditionalGeneration"},
    bodies=("M2M100Model",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    frame=frame,
    prefix="model.",
    ignored=r"(model\.)?(encoder|decoder)\.(version|embed_positions\.weights?)",
    copies=COPIES,
    spare=spare,
    languages=r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})",  # M2M100's, or NLLB's
)
