"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)."""

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
from qkv.convert.architectures.name_tables import Part, Rule, Table, by_head, layers, modules

BODY: Table = {"embedding.table": "embed_in", "decoder.norm": "final_layer_norm"}
LAYER: Table = {
    "self_attention.output": "attention.dense",
    "self_attention_residual.norm": "input_layernorm",
    "feed_forward.inner": "mlp.dense_h_to_4h",
    "feed_forward.outer": "mlp.dense_4h_to_h",
    "feed_forward_residual.norm": "post_attention_layernorm",
}
OUTPUT: Table = {"output.projection": "embed_out"}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT-NeoX's config in our words."""
    wanted(config, "attention_bias", (True,), True)
    older = {
        "rope_theta": config.get("rotary_emb_base"),
        "partial_rotary_factor": config.get("rotary_pct", 0.25),
    }
    return {
        **PRESETS["gpt2"],
        "n_decoder_layers": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "d_model": config["hidden_size"],
        "n_heads": config["num_attention_heads"],
        "d_ff": config["intermediate_size"],
        "max_length": config.get("max_position_embeddings", 2048),
        "activation": activation(config, "hidden_act", "gelu"),
        "norm_epsilon": config.get("layer_norm_eps", 1e-5),
        "parallel": config.get("use_parallel_residual", True),
        "dropout": float(config.get("hidden_dropout") or 0.0),
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
        "tie": "output" if config.get("tie_word_embeddings", False) else "none",
        "positions": "rotary",
        **read_angles({**older, **config}),
    }


def write_config(config: ModelConfig) -> Values:
    """GPT-NeoX's config, from ours."""
    angles = {"partial_rotary_factor": config.rotary_share, **write_angles(config)}
    return {
        "num_hidden_layers": config.n_decoder_layers,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_length,
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
        "layer_norm_eps": config.norm_epsilon,
        "use_parallel_residual": config.parallel,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tie in ("all", "output"),
        "rope_parameters": angles,
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where they keep each weight."""
    fused = Part("attention.query_key_value", by_head(config.n_heads))
    table = {**LAYER, "self_attention.query_key_value": fused}
    yield from modules(config, "", "gpt_neox.", BODY)
    yield from layers(
        config, "decoder.blocks.{}.", "gpt_neox.layers.{}.", table, config.n_decoder_layers
    )
    yield from modules(config, "", "", OUTPUT)


GPT_NEOX = Architecture(
    name="GPT-NeoX",
    model_type="gpt_neox",
    family="decoder",
    classes={"causal": "GPTNeoXForCausalLM"},
    bodies=("GPTNeoXModel",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    prefix="gpt_neox.",
    renamed=((r"^lm_head\.", "embed_out."),),
    # What a token may see, and rates of angles, which older files hold
    ignored=r"(gpt_neox\.)?layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",
    copies={"embed_out.weight": "gpt_neox.embed_in.weight"},
)
