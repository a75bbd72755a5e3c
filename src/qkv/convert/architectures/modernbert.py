"""ModernBERT (Warner et al. 2024)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures import bert
from qkv.convert.architectures.angles import read_angles, read_angles_by_type, write_angles_by_type
from qkv.convert.architectures.architecture import (
    Architecture,
    Field,
    Values,
    wanted,
    write_activation,
)
from qkv.convert.architectures.name_tables import Names, Table
from qkv.convert.architectures.windows import read_windows, write_layer_types

BODY: Table = {
    "embedding.table": "embeddings.tok_embeddings",
    "encoder.input_norm": "embeddings.norm",
    "encoder.norm": "final_norm",
}
LAYER: Table = {
    "self_attention.query_key_value": "attn.Wqkv",
    "self_attention.output": "attn.Wo",
    "self_attention_residual.norm": "attn_norm",
    "feed_forward.inner": "mlp.Wi",
    "feed_forward.outer": "mlp.Wo",
    "feed_forward_residual.norm": "mlp_norm",
}
LABELS: Table = {
    "head.layer.dense": "head.dense",
    "head.layer.norm": "head.norm",
    "head.projection": "classifier",
}
HEADS: Mapping[str, Table] = {
    "masked": {"head.dense": "head.dense", "head.norm": "head.norm", "head.projection": "decoder"},
    **dict.fromkeys(("sequence", "token", "answer"), LABELS),
}
FULL_BASE = ("global_rope_theta", 160_000.0)
WINDOW_BASE = ("local_rope_theta", 10_000.0)
POOLINGS = {"cls": "first", "mean": "mean"}
NO_BIAS = ("attention_bias", "mlp_bias", "classifier_bias", "norm_bias")


def read(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """ModernBERT's windows, angles and pooling."""
    act = config.get("hidden_activation", "gelu")
    wanted(config, "classifier_activation", (act,), "gelu")
    n_layers, period = config["num_hidden_layers"], config.get("global_attn_every_n_layers") or 3
    usual = "".join("w" if layer % period else "f" for layer in range(n_layers))
    windows = read_windows(config, config.get("local_attention", 128) // 2 + 1, usual)
    angles, local = read_angles_by_type(config, FULL_BASE, WINDOW_BASE)
    return {
        **read_angles(angles),
        **windows,
        "rotary_window_base": local if windows["window"] else 0.0,
        "pooling": POOLINGS[wanted(config, "classifier_pooling", POOLINGS, "cls")],
    }


def write(config: ModelConfig) -> Values:
    """ModernBERT's windows, angles and pooling, from ours."""
    poolings = {ours: theirs for theirs, ours in POOLINGS.items()}
    return {
        "classifier_activation": write_activation(config.activation),
        "classifier_pooling": poolings.get(config.pooling, "cls"),
        "layer_types": write_layer_types(config),
        "local_attention": 2 * (config.window - 1) if config.window else 128,
        "rope_parameters": write_angles_by_type(config),
        "cls_token_id": config.bos_id,
        "sep_token_id": config.eos_id,
    }


MODERNBERT = replace(
    bert.BERT,
    name="ModernBERT",
    model_type="modernbert",
    classes=bert.label_classes("ModernBert"),
    values={
        **PRESETS["bert-base"],
        "gated": True,
        "bias": False,
        "norm_bias": False,
        "norm_position": "pre",
        "first_norm": False,
        "n_segments": 0,
        "positions": "rotary",
        "pooler": "none",
        "head_layer": True,
        "head_bias": False,
    },
    fields={
        **bert.BLOCK_FIELDS,
        "vocab_size": "vocab_size",
        "max_length": Field("max_position_embeddings", 8192),
        "activation": Field("hidden_activation", "gelu"),
        "norm_epsilon": Field("norm_eps", 1e-5),
        "tie": Field("tie_word_embeddings", True),
        "dropout": Field("embedding_dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "activation_dropout": Field("mlp_dropout", 0.0),
    },
    needs={**dict.fromkeys(NO_BIAS, False), "decoder_bias": True},
    read=read,
    write=write,
    rules=Names("encoder", "model.", BODY, "layers.{}.", LAYER, HEADS),
    prefix="model.",
    renamed=(),
    ignored=Architecture.ignored,
    copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    spare=Architecture.spare,
)
