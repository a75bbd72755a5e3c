"""DistilBERT (Sanh et al. 2019): half of BERT's layers, without segments and without a pooler."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures import bert
from qkv.convert.architectures.architecture import (
    Field,
    Fields,
    Values,
    read_fields,
    write_fields,
)
from qkv.convert.architectures.name_tables import Names, Table

LAYER: Table = {
    "self_attention.query_key_value": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "self_attention.output": "attention.out_lin",
    "self_attention_residual.norm": "sa_layer_norm",
    "feed_forward.inner": "ffn.lin1",
    "feed_forward.outer": "ffn.lin2",
    "feed_forward_residual.norm": "output_layer_norm",
}
HEADS: Mapping[str, Table] = {
    "none": {},
    "masked": {
        "head.dense": "vocab_transform",
        "head.norm": "vocab_layer_norm",
        "head.projection": "vocab_projector",
    },
    "sequence": {"pooler.dense": "pre_classifier", **bert.LABELS},
    "token": bert.LABELS,
    "answer": bert.ANSWER,
}


USUAL = PRESETS["bert-base"]
FIELDS: Fields = {
    "n_encoder_layers": "n_layers",
    "d_model": "dim",
    "n_heads": "n_heads",
    "d_ff": "hidden_dim",
    "activation": Field("activation", "gelu"),
    **bert.TEXT_FIELDS,
    "dropout": Field("dropout", USUAL["dropout"]),
    "attention_dropout": Field("attention_dropout", USUAL["attention_dropout"]),
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """DistilBERT's config in our words; positions that are waves lie in the file like others."""
    pooler = "relu" if head == "sequence" else "none"
    return {**USUAL, **read_fields(config, FIELDS), "n_segments": 0, "pooler": pooler}


def write_config(config: ModelConfig) -> Values:
    """DistilBERT's config, from ours."""
    return {
        **write_fields(config, FIELDS),
        "sinusoidal_pos_embds": False,
        "seq_classif_dropout": config.dropout,
        "qa_dropout": config.dropout,
    }


DISTILBERT = bert.like_bert(
    "DistilBERT",
    "distilbert",
    "DistilBert",
    read_config,
    write_config,
    Names("encoder", "distilbert.", bert.EMBEDDINGS, "transformer.layer.{}.", LAYER, HEADS),
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
