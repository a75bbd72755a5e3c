"""Marian (Junczys-Dowmunt et al. 2018): the paper's translator, its sines before its cosines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import (
    Architecture,
    Field,
    Fields,
    Spare,
    Values,
    read_fields,
    wanted,
    write_fields,
)
from qkv.convert.architectures.name_tables import IN_A_ROW, Part, Rule, Table, layers
from qkv.convert.tokenizers.frame import Frame

ENCODER_LAYER: Table = {
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": "self_attn.out_proj",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
DECODER_LAYER: Table = {
    **ENCODER_LAYER,
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
}
SHARED, OUTPUT = "model.shared.weight", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
# Where all is tied, some files repeat the matrix; where nothing is, a shared one has no use.
COPIES = {SOURCE: SHARED, TARGET: SHARED, OUTPUT: SHARED, SHARED: SOURCE}


FIELDS: Fields = {
    "n_encoder_layers": "encoder_layers",
    "n_decoder_layers": "decoder_layers",
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "n_heads": "encoder_attention_heads",
    "d_ff": "encoder_ffn_dim",
    "activation": Field("activation_function", "gelu"),
    "max_length": "max_position_embeddings",
    "dropout": Field("dropout", 0.1),
    "attention_dropout": Field("attention_dropout", 0.0),
    "activation_dropout": Field("activation_dropout", 0.0),
}


def both_values(
    config: Mapping[str, Any], names: Collection[str], norm_position: str = "post"
) -> Values:
    """The values that the configs of Marian, BART and the models after them share."""
    pre = norm_position == "pre"
    heads, width = config["encoder_attention_heads"], config["encoder_ffn_dim"]
    wanted(config, "decoder_attention_heads", (heads,), heads)
    wanted(config, "decoder_ffn_dim", (width,), width)
    for name in ("normalize_before", "add_final_layer_norm"):
        wanted(config, name, (pre,), pre)
    return {
        "norm_position": norm_position,
        **read_fields(config, FIELDS),
        "embedding_scale": bool(config.get("scale_embedding")),
        "output_bias": "final_logits_bias" in names,
        "tie": _tie(config, names),
    }


def _tie(config: Mapping[str, Any], names: Collection[str]) -> str:
    tied = config.get("tie_word_embeddings", True)
    if not config.get("share_encoder_decoder_embeddings", True):
        return "output" if tied else "none"
    if tied:
        return "all"
    # Before transformers 5, only the output was set free by this.
    return (
        "none" if any(name.endswith("encoder.embed_tokens.weight") for name in names) else "inputs"
    )


def both_config(config: ModelConfig) -> Values:
    """The config fields that Marian, BART and the models after them share, from ours."""
    return {
        **write_fields(config, FIELDS),
        "decoder_attention_heads": config.n_heads,
        "decoder_ffn_dim": config.d_ff,
        "scale_embedding": config.embedding_scale,
        "tie_word_embeddings": config.tie in ("all", "output"),
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where Marian keeps each weight, and BART most."""
    source = SHARED if config.tie in ("all", "inputs") else SOURCE
    yield Rule("source_embedding.table.weight", (Part(source),))
    yield Rule("target_embedding.table.weight", (Part(TARGET),))
    yield Rule("output.projection.weight", (Part(OUTPUT),))
    yield Rule("output.projection.bias", (Part("final_logits_bias", IN_A_ROW),))
    for side, table, depth in (
        ("encoder", ENCODER_LAYER, config.n_encoder_layers),
        ("decoder", DECODER_LAYER, config.n_decoder_layers),
    ):
        theirs = f"model.{side}.layers.{{}}."
        yield from layers(config, f"{side}.blocks.{{}}.", theirs, table, depth)


def spare(config: ModelConfig, head: str) -> Spare:
    """Embeddings that are one but not the output: since transformers 5, each has a copy."""
    return {SOURCE: SHARED, TARGET: SHARED} if config.tie == "inputs" else {}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Marian's config in our words."""
    wanted(config, "static_position_embeddings", (True,), True)
    wanted(config, "normalize_embedding", (False,), False)
    values = {**both_values(config, names), "positions": "sinusoidal_halves"}
    if config.get("share_encoder_decoder_embeddings", True):
        return values
    sizes = config.get("decoder_vocab_size") or config["vocab_size"], config["vocab_size"]
    return {**values, "vocab_size": sizes[0], "source_vocab_size": sizes[1]}


def write_config(config: ModelConfig) -> Values:
    """Marian's config, from ours."""
    return {
        **both_config(config),
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.tie in ("all", "inputs"),
        "static_position_embeddings": True,
    }


def frame(config: ModelConfig) -> Frame:
    """A text ends in EOS."""
    return Frame(after=(config.eos_id,))


WAVES = r"(model\.)?(encoder|decoder)\.embed_positions\.weights?"  # which nobody learns
MARIAN = Architecture(
    name="Marian",
    model_type="marian",
    family="encoder-decoder",
    classes={"seq2seq": "MarianMTModel"},
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    frame=frame,
    prefix="model.",
    ignored=WAVES,
    copies=COPIES,
    spare=spare,
)
