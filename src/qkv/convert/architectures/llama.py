"""Llama (Touvron et al. 2023), and Mistral (Jiang et al. 2023), which is Llama with a window."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.angles import read_angles, write_angles
from qkv.convert.architectures.architecture import (
    THEIR_ACTIVATIONS,
    Architecture,
    Values,
    activation,
    wanted,
)
from qkv.convert.architectures.name_tables import Rule, Table, layers, modules
from qkv.errors import UserError

BODY: Table = {"embedding.table": "embed_tokens", "decoder.norm": "norm"}
LAYER: Table = {
    "self_attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.output": "self_attn.o_proj",
    "self_attention_residual.norm": "input_layernorm",
    "feed_forward.inner": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.outer": "mlp.down_proj",
    "feed_forward_residual.norm": "post_attention_layernorm",
}
OUTPUT: Table = {"output.projection": "lm_head"}
BIASES = {"attention_bias": "self_attn", "mlp_bias": "mlp"}


def llama_values(config: Mapping[str, Any]) -> Values:
    """The values that all of this line share."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    key = config.get("head_dim") or width // heads
    angles = read_angles(config)
    wanted({"partial_rotary_factor": angles["rotary_share"]}, "partial_rotary_factor", (1.0,), 1.0)
    return {
        **PRESETS["llama-7b"],
        "n_decoder_layers": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "d_model": width,
        "n_heads": heads,
        "d_key": 0 if key * heads == width else key,
        "d_ff": config["intermediate_size"],
        "activation": activation(config, "hidden_act", "silu"),
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
        "tie": "output" if config.get("tie_word_embeddings", False) else "none",
        **angles,
    }


def read_groups(config: Mapping[str, Any], default: int) -> int:
    """Key/value heads; 0 where each query head has its own."""
    groups = int(config.get("num_key_value_heads", default) or config["num_attention_heads"])
    return 0 if groups == config["num_attention_heads"] else groups


def llama_config(config: ModelConfig) -> Values:
    """The config fields that all of this line share, from ours."""
    return {
        "num_hidden_layers": config.n_decoder_layers,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "intermediate_size": config.d_ff,
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_epsilon,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tie in ("all", "output"),
        "rope_parameters": write_angles(config),
    }


def read_llama(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Llama's config in our words."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if width % heads:
        raise UserError(
            f"config.json: hidden_size ({width}) is not a multiple of num_attention_heads "
            f"({heads}), which Llama does not allow."
        )
    bias = any(config.get(name) for name in BIASES)
    return {
        **llama_values(config),
        "n_kv_heads": read_groups(config, heads),
        "bias": bias,
        "max_length": config.get("max_position_embeddings", 2048),
    }


def without_bias(config: Mapping[str, Any]) -> str:
    """The biases that a config leaves out; ours stand in all layers or in none."""
    parts = [part for name, part in BIASES.items() if not config.get(name)]
    return rf"model\.layers\.\d+\.({'|'.join(parts)})\.\w+\.bias" if parts else r"(?!)"


def write_llama(config: ModelConfig) -> Values:
    """Llama's config, from ours."""
    return {**llama_config(config), "attention_bias": config.bias, "mlp_bias": config.bias}


def read_mistral(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Mistral's config in our words."""
    kinds = set(config.get("layer_types") or ())
    if len(kinds) > 1:
        raise UserError(
            "config.json: layer_types has layers with a window and layers without, but a Mistral "
            "can only be read with the same window in all layers."
        )
    window = 0 if kinds == {"full_attention"} else config.get("sliding_window", 4096) or 0
    return {
        **llama_values(config),
        "n_kv_heads": read_groups(config, 8),
        "max_length": config.get("max_position_embeddings", 131_072),
        "window": window,
    }


def write_mistral(config: ModelConfig) -> Values:
    """Mistral's config, from ours."""
    return {**llama_config(config), "sliding_window": config.window or None}


def rules(config: ModelConfig, head: str, table: Table = LAYER) -> Iterator[Rule]:
    """Where all of this line keep each weight; what a layer's are called is in the table."""
    yield from modules(config, "", "model.", BODY)
    yield from layers(
        config, "decoder.blocks.{}.", "model.layers.{}.", table, config.n_decoder_layers
    )
    yield from modules(config, "", "", OUTPUT)


LLAMA = Architecture(
    name="Llama",
    model_type="llama",
    family="decoder",
    classes={"causal": "LlamaForCausalLM"},
    bodies=("LlamaModel",),
    read_config=read_llama,
    write_config=write_llama,
    rules=rules,
    left_out=without_bias,
    prefix="model.",
    ignored=r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    copies={"lm_head.weight": "model.embed_tokens.weight"},
)
MISTRAL = Architecture(
    name="Mistral",
    model_type="mistral",
    family="decoder",
    classes={"causal": "MistralForCausalLM"},
    bodies=("MistralModel",),
    read_config=read_mistral,
    write_config=write_mistral,
    rules=rules,
    prefix="model.",
    ignored=LLAMA.ignored,
    copies=LLAMA.copies,
)
