"""ELECTRA (Clark et al. 2020): BERT without a pooler, narrow embeddings in small models.

Of a discriminator, which tells replaced tokens from others, the body is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Architecture, Spare, Values, wanted
from qkv.convert.architectures.bert import (
    ANSWER,
    EMBEDDINGS,
    LABELS,
    LAYER,
    POSITION_IDS,
    encoder_config,
    encoder_values,
    frame,
    label_classes,
)
from qkv.convert.architectures.name_tables import Rule, Table, layers, modules
from qkv.errors import UserError

BODY: Table = {**EMBEDDINGS, "encoder.widen": "embeddings_project"}
HEADS: Mapping[str, Table] = {
    "none": {},
    "masked": {
        "head.dense": "generator_predictions.dense",
        "head.norm": "generator_predictions.LayerNorm",
        "head.projection": "generator_lm_head",
    },
    "sequence": {"pooler.dense": "classifier.dense", "head.projection": "classifier.out_proj"},
    "token": LABELS,
    "answer": ANSWER,
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """ELECTRA's config in our words."""
    wanted(config, "position_embedding_type", ("absolute",), "absolute")
    values = encoder_values(config, "bert-base")
    if head == "masked" and values["activation"] != "gelu":
        raise UserError(
            f"config.json: hidden_act is {config['hidden_act']!r}, but ELECTRA's head for hidden "
            f"tokens is always 'gelu', and here it would be the same as in the layers."
        )
    width = config.get("embedding_size", 128)
    return {
        **values,
        "d_embedding": 0 if width == config["hidden_size"] else width,
        "pooler": "gelu" if head == "sequence" else "none",
    }


def write_config(config: ModelConfig) -> Values:
    """ELECTRA's config, from ours."""
    return {**encoder_config(config), "embedding_size": config.embedding_width}


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where ELECTRA keeps each weight."""
    yield from modules(config, "", "electra.", BODY)
    yield from layers(
        config, "encoder.blocks.{}.", "electra.encoder.layer.{}.", LAYER, config.n_encoder_layers
    )
    yield from modules(config, "", "", HEADS[head])


def spare(config: ModelConfig, head: str) -> Spare:
    """One kind of segment, which theirs have always."""
    if config.n_segments:
        return {}
    return {"electra.embeddings.token_type_embeddings.weight": (1, config.embedding_width)}


ELECTRA = Architecture(
    name="ELECTRA",
    model_type="electra",
    family="encoder",
    classes=label_classes("Electra"),
    bodies=("ElectraForPreTraining",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    frame=frame,
    prefix="electra.",
    ignored=rf"{POSITION_IDS}|discriminator_predictions\..*",
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    spare=spare,
)
