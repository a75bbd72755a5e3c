"""GPT (Radford et al. 2018) and GPT-2 (2019)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    THEIR_ACTIVATIONS,
    Architecture,
    Field,
    Fields,
    Values,
    activation,
    read_fields,
    wanted,
    write_fields,
)
from qkv.convert.architectures.name_tables import (
    TRANSPOSED,
    Names,
    Part,
    Table,
)

# Their matrices multiply from the right, so they stand on their side.
LAYER: Table = {
    "self_attention.query_key_value": Part("attn.c_attn", TRANSPOSED),
    "self_attention.output": Part("attn.c_proj", TRANSPOSED),
    "self_attention_residual.norm": "ln_1",
    "feed_forward.inner": Part("mlp.c_fc", TRANSPOSED),
    "feed_forward.outer": Part("mlp.c_proj", TRANSPOSED),
    "feed_forward_residual.norm": "ln_2",
}
GPT_BODY: Table = {
    "embedding.table": "tokens_embed",
    "decoder.positions.table": "positions_embed",
}
GPT2_BODY: Table = {
    "embedding.table": "wte",
    "decoder.positions.table": "wpe",
    "decoder.norm": "ln_f",
}
HEADS: Mapping[str, Table] = {"causal": {"output.projection": "lm_head"}}
# GPT's "gelu" is the approximation with tanh, and it knows no other.
GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
THEIR_GPT_ACTIVATIONS = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}
# What a token may see, and 0, 1, 2, …: older files hold both, and neither is learnt.
NOT_LEARNT = r"(transformer\.)?(h\.\d+\.attn\.(masked_)?bias|position_ids)"


FIELDS: Fields = {
    "n_decoder_layers": "n_layer",
    "vocab_size": "vocab_size",
    "d_model": "n_embd",
    "n_heads": "n_head",
    "norm_epsilon": Field("layer_norm_epsilon", 1e-5),
    "dropout": Field("resid_pdrop", 0.1),
    "attention_dropout": Field("attn_pdrop", 0.1),
    "tie": Field("tie_word_embeddings", True),
}


def _values(config: Mapping[str, Any]) -> Values:
    """The values that both configs share."""
    length = config.get("n_positions") or config["n_ctx"]
    return {**read_fields(config, FIELDS), "max_length": length}


def _config(config: ModelConfig) -> Values:
    """The config fields that both share, from ours."""
    return {
        **write_fields(config, FIELDS),
        "n_positions": config.max_length,
        "embd_pdrop": config.dropout,
    }


def read_gpt(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT's config in our words; its feed-forward layers are always four times as wide."""
    return {
        **PRESETS["gpt"],
        **_values(config),
        "d_ff": 4 * config["n_embd"],
        "activation": GPT_ACTIVATIONS[wanted(config, "afn", GPT_ACTIVATIONS, "gelu")],
    }


def write_gpt(config: ModelConfig) -> Values:
    """GPT's config, from ours."""
    return {**_config(config), "afn": THEIR_GPT_ACTIVATIONS.get(config.activation)}


def read_gpt2(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT-2's config in our words."""
    wanted(config, "scale_attn_by_inverse_layer_idx", (False,), False)
    wanted(config, "add_cross_attention", (False,), False)
    return {
        **PRESETS["gpt2"],
        **_values(config),
        "d_ff": config.get("n_inner") or 4 * config["n_embd"],
        "activation": activation(config, "activation_function", "gelu_new"),
        "score_division": config.get("scale_attn_weights", True),
    }


def write_gpt2(config: ModelConfig) -> Values:
    """GPT-2's config, from ours."""
    return {
        **_config(config),
        "n_inner": config.d_ff,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "scale_attn_weights": config.score_division,
    }


GPT = Architecture(
    name="GPT",
    model_type="openai-gpt",
    family="decoder",
    classes={"causal": "OpenAIGPTLMHeadModel"},
    bodies=("OpenAIGPTModel",),
    read_config=read_gpt,
    write_config=write_gpt,
    rules=Names("decoder", "transformer.", GPT_BODY, "h.{}.", LAYER, HEADS),
    prefix="transformer.",
    ignored=NOT_LEARNT,
    copies={"lm_head.weight": "transformer.tokens_embed.weight"},
)
GPT2 = replace(
    GPT,
    name="GPT-2",
    model_type="gpt2",
    classes={"causal": "GPT2LMHeadModel"},
    bodies=("GPT2Model",),
    read_config=read_gpt2,
    write_config=write_gpt2,
    rules=Names("decoder", "transformer.", GPT2_BODY, "h.{}.", LAYER, HEADS),
    copies={"lm_head.weight": "transformer.wte.weight"},
)
