"""T5 (Raffel et al. 2020) and its version 1.1: distances in buckets, no bias, scores undivided."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    Architecture,
    Field,
    Values,
    activation,
    write_activation,
)
from qkv.convert.architectures.name_tables import Rule, Table, layers, modules
from qkv.convert.tokenizers.frame import Frame
from qkv.errors import UserError

MODEL: Table = {
    "source_embedding.table": "shared",
    "output.projection": "lm_head",
    "encoder.norm": "encoder.final_layer_norm",
    "decoder.norm": "decoder.final_layer_norm",
    # All layers add what the first one's table says.
    "encoder.positions.table": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "decoder.positions.table": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
}
SELF_ATTENTION: Table = {
    "self_attention.query_key_value": tuple(f"layer.0.SelfAttention.{part}" for part in "qkv"),
    "self_attention.output": "layer.0.SelfAttention.o",
    "self_attention_residual.norm": "layer.0.layer_norm",
}
CROSS_ATTENTION: Table = {
    "cross_attention.query": "layer.1.EncDecAttention.q",
    "cross_attention.key_value": ("layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
    "cross_attention.output": "layer.1.EncDecAttention.o",
    "cross_attention_residual.norm": "layer.1.layer_norm",
}
OUTPUT, TABLES = "lm_head.weight", ("shared.weight", "encoder.embed_tokens.weight")


def feed_forward(gated: bool, sublayer: int) -> Table:
    """The feed-forward layer, which is the last of a block's two or three sublayers."""
    prefix = f"layer.{sublayer}.DenseReluDense."
    inner = (f"{prefix}wi_0", f"{prefix}wi_1") if gated else f"{prefix}wi"
    return {
        "feed_forward.inner": inner,
        "feed_forward.outer": f"{prefix}wo",
        "feed_forward_residual.norm": f"layer.{sublayer}.layer_norm",
    }


def read(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """T5's feed-forward layers, buckets and output, which it says in words of its own."""
    kind = config.get("feed_forward_proj", "relu")
    n_buckets = config.get("relative_attention_num_buckets", 32)
    farthest = config.get("relative_attention_max_distance", 128)
    if n_buckets < 4 or farthest <= n_buckets // 2:  # theirs divides by zero, or leaves the table
        raise UserError(
            f"{n_buckets} buckets for distances up to {farthest}; T5 needs 4 buckets at least, and "
            f"distances over half their number."
        )
    # By "gated-gelu" the approximation is meant, unless the other is named.
    usual = "gelu_new" if kind == "gated-gelu" else kind.split("-")[-1]
    # Version 1.1 used to say by the output's matrix that it does not divide.
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    dropout = float(config.get("dropout_rate", 0.1) or 0.0)
    return {
        "n_decoder_layers": config.get("num_decoder_layers") or config["num_layers"],
        "d_key": config["d_kv"],
        "activation": activation(config, "dense_act_fn", usual),
        "gated": bool(config.get("is_gated_act", kind.startswith("gated-"))),
        "relative_buckets": n_buckets,
        "relative_length": farthest,
        "max_length": config.get("n_positions") or 512,
        "output_scale": bool(scaled),
        # A file may hold the output's matrix alone, or that of the embeddings, where they are one.
        "tie": "inputs" if OUTPUT in names and any(name in names for name in TABLES) else "all",
        "attention_dropout": dropout,
        "activation_dropout": dropout,
    }


def write(config: ModelConfig) -> Values:
    """T5's feed-forward layers, buckets and output, from ours."""
    name = write_activation(config.activation)
    kind = "gelu" if config.gated and name == "gelu_new" else name
    farthest = config.relative_length or config.max_length
    buckets = {
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": farthest,
    }
    return {
        **(buckets if config.positions == "relative" else {}),  # else they mean nothing
        "num_decoder_layers": config.n_decoder_layers,
        "d_kv": config.d_head,
        "feed_forward_proj": f"gated-{kind}" if config.gated else kind,
        "dense_act_fn": name,
        "is_gated_act": config.gated,
        "n_positions": config.max_length,
        "scale_decoder_outputs": config.output_scale,
        "tie_word_embeddings": config.tie == "all",
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where T5 keeps each weight."""
    yield from modules(config, "", "", MODEL)
    for side, table, depth in (
        ("encoder", {**SELF_ATTENTION, **feed_forward(config.gated, 1)}, config.n_encoder_layers),
        (
            "decoder",
            {**SELF_ATTENTION, **CROSS_ATTENTION, **feed_forward(config.gated, 2)},
            config.n_decoder_layers,
        ),
    ):
        yield from layers(config, f"{side}.blocks.{{}}.", f"{side}.block.{{}}.", table, depth)


T5 = Architecture(
    name="T5",
    model_type="t5",
    family="encoder-decoder",
    classes={"seq2seq": "T5ForConditionalGeneration"},
    bodies=("T5Model", "T5WithLMHeadModel"),
    values=PRESETS["t5-base"],
    fields={
        "n_encoder_layers": "num_layers",
        "vocab_size": "vocab_size",
        "d_model": "d_model",
        "n_heads": "num_heads",
        "d_ff": "d_ff",
        "norm_epsilon": Field("layer_norm_epsilon", 1e-6),
        "dropout": Field("dropout_rate", 0.1),
    },
    read=read,
    write=write,
    rules=rules,
    # A text ends in EOS, and so does each of a pair.
    frame=lambda config: Frame((), (config.eos_id,), (config.eos_id,)),
    # Published files have a table beside cross-attention that nobody reads.
    ignored=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    copies={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        OUTPUT: "shared.weight",
    },
)


def read_mt5(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """mT5 never divides the last vectors, and its usual gate is GELU."""
    values = read({"feed_forward_proj": "gated-gelu", **config}, names, head)
    return {**values, "output_scale": False}


# Xue et al. 2021: version 1.1, of 101 languages
MT5 = replace(
    T5,
    name="mT5",
    model_type="mt5",
    classes={"seq2seq": "MT5ForConditionalGeneration"},
    bodies=("MT5Model",),
    read=read_mt5,
)
