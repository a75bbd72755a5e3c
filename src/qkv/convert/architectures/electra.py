"""ELECTRA (Clark et al. 2020): BERT without a pooler, narrow embeddings in small models.

Of a discriminator, which tells replaced tokens from others, the body is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures import bert
from qkv.convert.architectures.architecture import Spare, Values, wanted
from qkv.convert.architectures.name_tables import Names, Table

BODY: Table = {**bert.EMBEDDINGS, "encoder.widen": "embeddings_project"}
HEADS: Mapping[str, Table] = {
    "none": {},
    "masked": {
        "head.dense": "generator_predictions.dense",
        "head.norm": "generator_predictions.LayerNorm",
        "head.projection": "generator_lm_head",
    },
    "sequence": {"pooler.dense": "classifier.dense", "head.projection": "classifier.out_proj"},
    "token": bert.LABELS,
    "answer": bert.ANSWER,
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """ELECTRA's config in our words."""
    wanted(config, "position_embedding_type", ("absolute",), "absolute")
    values = bert.gelu_encoder_values(config, "bert-base", head, "ELECTRA")
    width = config.get("embedding_size", 128)
    return {
        **values,
        "d_embedding": 0 if width == config["hidden_size"] else width,
        "pooler": "gelu" if head == "sequence" else "none",
    }


def write_config(config: ModelConfig) -> Values:
    """ELECTRA's config, from ours."""
    return {**bert.encoder_config(config), "embedding_size": config.embedding_width}


def spare(config: ModelConfig, head: str) -> Spare:
    """One kind of segment, which theirs have always."""
    if config.n_segments:
        return {}
    return {"electra.embeddings.token_type_embeddings.weight": (1, config.embedding_width)}


ELECTRA = bert.like_bert(
    "ELECTRA",
    "electra",
    "Electra",
    read_config,
    write_config,
    Names("encoder", "electra.", BODY, bert.LAYERS, bert.LAYER, HEADS),
    bodies=("ElectraForPreTraining",),
    ignored=rf"{bert.POSITION_IDS}|discriminator_predictions\..*",
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    spare=spare,
)
