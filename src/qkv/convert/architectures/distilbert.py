"""DistilBERT (Sanh et al. 2019): half of BERT's layers, without segments and without a pooler."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    THEIR_ACTIVATIONS,
    Architecture,
    Values,
    activation,
)
from qkv.convert.architectures.bert import (
    ANSWER,
    EMBEDDINGS,
    LABELS,
    POSITION_IDS,
    frame,
    label_classes,
)
from qkv.convert.architectures.name_tables import Rule, Table, layers, modules

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
    "sequence": {"pooler.dense": "pre_classifier", **LABELS},
    "token": LABELS,
    "answer": ANSWER,
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """DistilBERT's config in our words; positions that are waves lie in the file like others."""
    usual = PRESETS["bert-base"]
    return {
        **usual,
        "n_encoder_layers": config["n_layers"],
        "d_model": config["dim"],
        "n_heads": config["n_heads"],
        "d_ff": config["hidden_dim"],
        "activation": activation(config, "activation", "gelu"),
        "vocab_size": config["vocab_size"],
        "max_length": config.get("max_position_embeddings", 512),
        "n_segments": 0,
        "pooler": "relu" if head == "sequence" else "none",
        "tie": "output" if config.get("tie_word_embeddings", True) else "none",
        "dropout": float(config.get("dropout", usual["dropout"])),
        "attention_dropout": float(config.get("attention_dropout", usual["attention_dropout"])),
    }


def write_config(config: ModelConfig) -> Values:
    """DistilBERT's config, from ours."""
    return {
        "n_layers": config.n_encoder_layers,
        "dim": config.d_model,
        "n_heads": config.n_heads,
        "hidden_dim": config.d_ff,
        "activation": THEIR_ACTIVATIONS[config.activation],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_length,
        "sinusoidal_pos_embds": False,
        "tie_word_embeddings": config.tie != "none",
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "seq_classif_dropout": config.dropout,
        "qa_dropout": config.dropout,
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where DistilBERT keeps each weight."""
    yield from modules(config, "", "distilbert.", EMBEDDINGS)
    yield from layers(
        config,
        "encoder.blocks.{}.",
        "distilbert.transformer.layer.{}.",
        LAYER,
        config.n_encoder_layers,
    )
    yield from modules(config, "", "", HEADS[head])


DISTILBERT = Architecture(
    name="DistilBERT",
    model_type="distilbert",
    family="encoder",
    classes=label_classes("DistilBert"),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    frame=frame,
    prefix="distilbert.",
    ignored=POSITION_IDS,
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
