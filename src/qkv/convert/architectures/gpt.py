"""GPT (Radford et al. 2018) and GPT-2 (2019)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    THEIR_ACTIVATIONS,
    Architecture,
    Values,
    activation,
    wanted,
)
from qkv.convert.architectures.name_tables import TRANSPOSED, Part, Rule, Table, layers, modules

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
OUTPUT: Table = {"output.projection": "lm_head"}
# GPT's "gelu" is the approximation with tanh, and it knows no other.
GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
THEIR_GPT_ACTIVATIONS = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}
# What a token may see, and 0, 1, 2, …: older files hold both, and neither is learnt.
NOT_LEARNT = r"(transformer\.)?(h\.\d+\.attn\.(masked_)?bias|position_ids)"


def _values(config: Mapping[str, Any]) -> Values:
    """The values that both configs share."""
    return {
        "n_decoder_layers": config["n_layer"],
        "vocab_size": config["vocab_size"],
        "d_model": config["n_embd"],
        "n_heads": config["n_head"],
        "max_length": config.get("n_positions") or config["n_ctx"],
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "dropout": float(config.get("resid_pdrop", 0.1)),
        "attention_dropout": float(config.get("attn_pdrop", 0.1)),
        "tie": "output" if config.get("tie_word_embeddings", True) else "none",
    }


def _config(config: ModelConfig) -> Values:
    """The config fields that both share, from ours."""
    return {
        "n_layer": config.n_decoder_layers,
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_head": config.n_heads,
        "n_positions": config.max_length,
        "layer_norm_epsilon": config.norm_epsilon,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "tie_word_embeddings": config.tie in ("all", "output"),
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


def _rules(body: Table, config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where they keep each weight."""
    yield from modules(config, "", "transformer.", body)
    yield from layers(
        config, "decoder.blocks.{}.", "transformer.h.{}.", LAYER, config.n_decoder_layers
    )
    yield from modules(config, "", "", OUTPUT)


GPT = Architecture(
    name="GPT",
    model_type="openai-gpt",
    family="decoder",
    classes={"causal": "OpenAIGPTLMHeadModel"},
    bodies=("OpenAIGPTModel",),
    read_config=read_gpt,
    write_config=write_gpt,
    rules=partial(_rules, GPT_BODY),
    prefix="transformer.",
    ignored=NOT_LEARNT,
    copies={"lm_head.weight": "transformer.tokens_embed.weight"},
)
GPT2 = Architecture(
    name="GPT-2",
    model_type="gpt2",
    family="decoder",
    classes={"causal": "GPT2LMHeadModel"},
    bodies=("GPT2Model",),
    read_config=read_gpt2,
    write_config=write_gpt2,
    rules=partial(_rules, GPT2_BODY),
    prefix="transformer.",
    ignored=NOT_LEARNT,
    copies={"lm_head.weight": "transformer.wte.weight"},
)
