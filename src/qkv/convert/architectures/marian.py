"""Marian (Junczys-Dowmunt et al. 2018), BART, and the translators that differ in a few parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    Architecture,
    Field,
    Fields,
    Spare,
    Values,
    wanted,
)
from qkv.convert.architectures.name_tables import (
    IN_A_ROW,
    Module,
    Part,
    Rule,
    Table,
    after,
    layers,
    modules,
)
from qkv.convert.tokenizers.frame import Frame
from qkv.errors import UserError
from qkv.model.positions import sinusoid_table

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
INPUT: Table = {
    "positions.table": Module("embed_positions", after(2)),
    "input_norm": "layernorm_embedding",
}
FINAL: Table = {"norm": "layer_norm"}  # after a stack whose blocks are pre-norm
SHARED, OUTPUT = "model.shared.weight", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
FIELDS: Fields = {
    "n_encoder_layers": "encoder_layers",
    "n_decoder_layers": "decoder_layers",
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "n_heads": "encoder_attention_heads",
    "d_ff": "encoder_ffn_dim",
    "activation": Field("activation_function", "gelu"),
    "embedding_scale": Field("scale_embedding", False, read=bool),
    "max_length": "max_position_embeddings",
    "dropout": Field("dropout", 0.1),
    "attention_dropout": Field("attention_dropout", 0.0),
    "activation_dropout": Field("activation_dropout", 0.0),
}
POST = {"normalize_before": False, "add_final_layer_norm": False}
PRE = dict.fromkeys(POST, True)
WAVES = {"static_position_embeddings": True, "normalize_embedding": False}
LEARNED = {"static_position_embeddings": False, "normalize_embedding": True}


def read_common(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """What the configs of all of this line share beside their fields."""
    heads, width = config["encoder_attention_heads"], config["encoder_ffn_dim"]
    wanted(config, "decoder_attention_heads", (heads,), heads)
    wanted(config, "decoder_ffn_dim", (width,), width)
    return {"output_bias": "final_logits_bias" in names, "tie": _tie(config, names)}


def _tie(config: Mapping[str, Any], names: Collection[str]) -> str:
    tied = config.get("tie_word_embeddings", True)
    if not config.get("share_encoder_decoder_embeddings", True):
        return "output" if tied else "none"
    if tied:
        return "all"
    # Before transformers 5, only the output was set free by this.
    apart = any(name.endswith("encoder.embed_tokens.weight") for name in names)
    return "none" if apart else "inputs"


def write_common(config: ModelConfig) -> Values:
    """What the configs of all of this line share beside their fields, from ours."""
    return {
        "decoder_attention_heads": config.n_heads,
        "decoder_ffn_dim": config.d_ff,
        "tie_word_embeddings": config.tie in ("all", "output"),
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where all of this line keep each weight."""
    source = SHARED if config.tie in ("all", "inputs") else SOURCE
    yield Rule("source_embedding.table.weight", (Part(source),))
    yield Rule("target_embedding.table.weight", (Part(TARGET),))
    yield Rule("output.projection.weight", (Part(OUTPUT),))
    yield Rule("output.projection.bias", (Part("final_logits_bias", IN_A_ROW),))
    ends = {
        **(INPUT if config.positions == "learned" else {}),
        **(FINAL if config.norm_position == "pre" else {}),
    }
    for side, table in (("encoder.", ENCODER_LAYER), ("decoder.", DECODER_LAYER)):
        depth = getattr(config, f"n_{side[:-1]}_layers")
        theirs = f"model.{side}layers.{{}}."
        yield from layers(config, f"{side}blocks.{{}}.", theirs, table, depth)
        yield from modules(config, side, f"model.{side}", ends)


def spare(config: ModelConfig, head: str, always_shared: bool = True) -> Spare:
    """Embeddings that are one but not the output: since transformers 5, each has a copy.

    The shared embedding may be there even where nobody reads it.
    """
    if config.tie == "none" and always_shared:
        return {SHARED: SOURCE}
    return {SOURCE: SHARED, TARGET: SHARED} if config.tie == "inputs" else {}


# Marian: the paper's translator, its sines before its cosines


def read_marian(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Marian's vocabularies, of which it may have two."""
    values = read_common(config, names, head)
    if config.get("share_encoder_decoder_embeddings", True):
        return values
    target = config.get("decoder_vocab_size") or config["vocab_size"]
    return {**values, "vocab_size": target, "source_vocab_size": config["vocab_size"]}


def write_marian(config: ModelConfig) -> Values:
    """Marian's vocabularies, from ours."""
    return {
        **write_common(config),
        "vocab_size": config.source_vocab_size or config.vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.tie in ("all", "inputs"),
        "static_position_embeddings": True,
    }


MARIAN = Architecture(
    name="Marian",
    model_type="marian",
    family="encoder-decoder",
    classes={"seq2seq": "MarianMTModel"},
    values={"norm_position": "post", "positions": "sinusoidal_halves"},
    fields=FIELDS,
    needs={**WAVES, **POST},
    read=read_marian,
    write=write_marian,
    rules=rules,
    frame=lambda config: Frame(after=(config.eos_id,)),
    prefix="model.",
    ignored=r"(model\.)?(encoder|decoder)\.embed_positions\.weights?",  # which nobody learns
    # Where all is tied, some files repeat the matrix; where nothing is, a shared one has no use.
    copies={SOURCE: SHARED, TARGET: SHARED, OUTPUT: SHARED, SHARED: SOURCE},
    spare=partial(spare, always_shared=False),
)

# Pegasus (Zhang et al. 2020): Marian's waves with norms in front; it writes summaries


def pegasus_spare(config: ModelConfig, head: str) -> Spare:
    """The waves lie in their files, though nobody learns them."""
    sides = ("encoder", "decoder")
    waves = {f"model.{side}.embed_positions.weight": sinusoid_table(config) for side in sides}
    return {**spare(config, head), **waves}


PEGASUS = replace(
    MARIAN,
    name="Pegasus",
    model_type="pegasus",
    classes={"seq2seq": "PegasusForConditionalGeneration"},
    bodies=("PegasusModel",),
    values={"norm_position": "pre", "positions": "sinusoidal_halves"},
    needs={**WAVES, **PRE},
    read=read_common,
    write=lambda config: {**write_common(config), "static_position_embeddings": True},
    spare=pegasus_spare,
)

# BART (Lewis et al. 2020): learnt positions, a norm on the embeddings, <s> before each text


def read_bart(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """BART's first token.

    Its tokenizer puts <s> before every text, targets in training too; to force it where a text is
    generated, or to leave it to the model, makes no difference once that has learnt it.
    """
    start = config.get("bos_token_id", 0)
    if start is not None:
        wanted(config, "forced_bos_token_id", (start,), start)
    return {**read_common(config, names, head), "start_id": -1 if start is None else start}


def write_bart(config: ModelConfig) -> Values:
    """BART's first token, from ours."""
    start = None if config.start_id < 0 else config.start_id
    return {**write_common(config), "bos_token_id": start}


def bart_frame(config: ModelConfig) -> Frame:
    """<s> text </s>, or <s> text </s></s> text </s>."""
    start = () if config.start_id < 0 else (config.start_id,)
    return Frame(start, (config.eos_id,) * 2, (config.eos_id,))


BART = replace(
    MARIAN,
    name="BART",
    model_type="bart",
    classes={"seq2seq": "BartForConditionalGeneration"},
    # What Lewis et al. published is tied, so that the body is all there is.
    bodies=("BartModel",),
    values={**PRESETS["bart-base"], "norm_position": "post"},
    needs={**LEARNED, **POST},
    read=read_bart,
    write=write_bart,
    frame=bart_frame,
    ignored=r"(model\.)?(encoder|decoder)\.version",
    spare=spare,
)

# mBART (Liu et al. 2020) and mBART-50: BART with norms in front, and a token for each language

MBART = replace(
    BART,
    name="mBART",
    model_type="mbart",
    classes={"seq2seq": "MBartForConditionalGeneration"},
    bodies=("MBartModel",),
    values={**PRESETS["bart-base"], "norm_position": "pre"},
    needs={**LEARNED, **PRE},
    read=read_common,
    write=write_common,
    frame=MARIAN.frame,
    languages=r"([a-z]{2,3}_[A-Z]{2})()",
)

# M2M100 (Fan et al. 2021) and NLLB (2022): norms in front, fairseq's waves, language tokens


def read_m2m100(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """M2M100's padding, after which its waves begin."""
    values = read_common(config, names, head)
    return {**values, "output_bias": False, "pad_id": config["pad_token_id"]}


def write_m2m100(config: ModelConfig) -> Values:
    """M2M100's padding, from ours."""
    if config.pad_id in (config.bos_id, config.eos_id):
        raise UserError("M2M100 has no place for a token that is also the padding.")
    return {**write_common(config), "pad_token_id": config.pad_id}


M2M100 = replace(
    MBART,
    name="M2M100",
    model_type="m2m_100",
    classes={"seq2seq": "M2M100ForConditionalGeneration"},
    bodies=("M2M100Model",),
    values={"norm_position": "pre", "positions": "sinusoidal_fairseq"},
    fields={
        **FIELDS,
        "activation": Field("activation_function", "relu"),
        "embedding_scale": Field("scale_embedding", True, read=bool),
    },
    needs=PRE,
    read=read_m2m100,
    write=write_m2m100,
    ignored=r"(model\.)?(encoder|decoder)\.(version|embed_positions\.weights?)",
    languages=r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})",  # M2M100's, or NLLB's
)
