"""Llama (Touvron et al. 2023), and Mistral (Jiang et al. 2023), which is Llama with a window."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.config.presets import PRESETS
from qkv.convert.architectures.angles import read_angles, write_angles
from qkv.convert.architectures.architecture import (
    Architecture,
    Field,
    Fields,
    Values,
    read_fields,
    wanted,
    write_fields,
)
from qkv.convert.architectures.gpt import HEADS
from qkv.convert.architectures.name_tables import Names, Rule, Table
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
FIELDS: Fields = {
    "n_decoder_layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "activation": Field("hidden_act", "silu"),
    "norm_epsilon": Field("rms_norm_eps", 1e-6),
    "attention_dropout": Field("attention_dropout", 0.0),
    "tie": Field("tie_word_embeddings", False),
}
BIASES = {"attention_bias": "self_attn", "mlp_bias": "mlp"}


def llama_values(config: Mapping[str, Any]) -> Values:
    """The values that all of this line share."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    key = config.get("head_dim") or width // heads
    angles = read_angles(config)
    wanted({"partial_rotary_factor": angles["rotary_share"]}, "partial_rotary_factor", (1.0,), 1.0)
    return {
        **PRESETS["llama-7b"],
        **read_fields(config, FIELDS),
        "d_key": 0 if key * heads == width else key,
        **angles,
    }


def read_groups(config: Mapping[str, Any], default: int) -> int:
    """Key/value heads; 0 where each query head has its own."""
    groups = int(config.get("num_key_value_heads", default) or config["num_attention_heads"])
    return 0 if groups == config["num_attention_heads"] else groups


def llama_config(config: ModelConfig) -> Values:
    """The config fields that all of this line share, from ours."""
    return {
        **write_fields(config, FIELDS),
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "max_position_embeddings": config.max_length,
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


RULES = Names("decoder", "model.", BODY, "layers.{}.", LAYER, HEADS)


def like_llama(
    name: str,
    model_type: str,
    class_prefix: str,
    read_config: Callable[[Mapping[str, Any], Collection[str], str], Values],
    write_config: Callable[[ModelConfig], Values],
    rules: Callable[[ModelConfig, str], Iterable[Rule]] = RULES,
    **more: Any,
) -> Architecture:
    """An architecture of this line."""
    common = Architecture(
        name=name,
        model_type=model_type,
        family="decoder",
        classes={"causal": f"{class_prefix}ForCausalLM"},
        bodies=(f"{class_prefix}Model",),
        read_config=read_config,
        write_config=write_config,
        rules=rules,
        prefix="model.",
        ignored=r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
        copies={"lm_head.weight": "model.embed_tokens.weight"},
    )
    return replace(common, **more)


LLAMA = like_llama("Llama", "llama", "Llama", read_llama, write_llama, left_out=without_bias)
MISTRAL = like_llama("Mistral", "mistral", "Mistral", read_mistral, write_mistral)
