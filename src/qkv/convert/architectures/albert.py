"""ALBERT (Lan et al. 2020): one block for all layers, and narrow embeddings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures import bert
from qkv.convert.architectures.architecture import Values, wanted
from qkv.convert.architectures.name_tables import FLIPPED, Part, Rule, Table, modules

BODY: Table = {
    **bert.EMBEDDINGS,
    "encoder.widen": "encoder.embedding_hidden_mapping_in",
    "pooler.dense": "pooler",
}
BLOCK = "encoder.albert_layer_groups.0.albert_layers.0."
LAYER: Table = {
    "self_attention.query_key_value": ("attention.query", "attention.key", "attention.value"),
    "self_attention.output": "attention.dense",
    "self_attention_residual.norm": "attention.LayerNorm",
    "feed_forward.inner": "ffn",
    "feed_forward.outer": "ffn_output",
    "feed_forward_residual.norm": "full_layer_layer_norm",
}
MASKED: Table = {"head.dense": "predictions.dense", "head.norm": "predictions.LayerNorm"}
# Theirs says 0 for texts in their order, ours 1.
PAIRS: Table = {"pair_head.projection": Part("sop_classifier.classifier", FLIPPED)}
HEADS: Mapping[str, Table] = {
    "none": {},
    "masked": MASKED,
    "pairs": {**MASKED, **PAIRS},
    "sequence": bert.LABELS,
    "token": bert.LABELS,
    "answer": bert.ANSWER,
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """ALBERT's config in our words."""
    wanted(config, "position_embedding_type", ("absolute",), "absolute")
    for name in ("num_hidden_groups", "inner_group_num"):
        wanted(config, name, (1,), 1)
    pooler = bert.has_pooler(names, head, ("sequence", "pairs"))
    return {
        **bert.encoder_values(config, "albert-base"),
        "d_embedding": config.get("embedding_size", 128),
        "pooler": "tanh" if pooler else "none",
    }


def write_config(config: ModelConfig) -> Values:
    """ALBERT's config, from ours."""
    return {
        **bert.encoder_config(config),
        "embedding_size": config.d_embedding,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "classifier_dropout_prob": config.dropout,
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where ALBERT keeps each weight."""
    yield from modules(config, "", "albert.", BODY)
    yield from modules(config, "encoder.blocks.0.", f"albert.{BLOCK}", LAYER)
    yield from modules(config, "", "", HEADS[head])
    yield from bert.masked_output(config, head, "predictions.")


ALBERT = bert.like_bert(
    "ALBERT",
    "albert",
    "Albert",
    read_config,
    write_config,
    rules,
    classes={**bert.label_classes("Albert"), "pairs": "AlbertForPreTraining"},
    copies=bert.masked_copies("albert.", "predictions."),
    spare=partial(bert.spare, body="albert.", masked="predictions.", pooler="albert.pooler"),
)
