"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
from qkv.convert.architectures.name_tables import Names, Part, Rule, Table, by_head

BODY: Table = {"embedding.table": "embed_in", "decoder.norm": "final_layer_norm"}
LAYER: Table = {
    "self_attention.output": "attention.dense",
    "self_attention_residual.norm": "input_layernorm",
    "feed_forward.inner": "mlp.dense_h_to_4h",
    "feed_forward.outer": "mlp.dense_4h_to_h",
    "feed_forward_residual.norm": "post_attention_layernorm",
}
HEADS: Mapping[str, Table] = {"causal": {"output.projection": "embed_out"}}


FIELDS: Fields = {
    "n_decoder_layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "max_length": Field("max_position_embeddings", 2048),
    "activation": Field("hidden_act", "gelu"),
    "norm_epsilon": Field("layer_norm_eps", 1e-5),
    "parallel": Field("use_parallel_residual", True),
    "dropout": Field("hidden_dropout", 0.0),
    "attention_dropout": Field("attention_dropout", 0.0),
    "tie": Field("tie_word_embeddings", False),
}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT-NeoX's config in our words."""
    wanted(config, "attention_bias", (True,), True)
    older = {
        "rope_theta": config.get("rotary_emb_base"),
        "partial_rotary_factor": config.get("rotary_pct", 0.25),
    }
    return {
        **PRESETS["gpt2"],
        **read_fields(config, FIELDS),
        "positions": "rotary",
        **read_angles({**older, **config}),
    }


def write_config(config: ModelConfig) -> Values:
    """GPT-NeoX's config, from ours."""
    angles = {"partial_rotary_factor": config.rotary_share, **write_angles(config)}
    return {**write_fields(config, FIELDS), "rope_parameters": angles}


def rules(config: ModelConfig, head: str) -> Iterable[Rule]:
    """Where they keep each weight."""
    fused = Part("attention.query_key_value", by_head(config.n_heads))
    table = {**LAYER, "self_attention.query_key_value": fused}
    return Names("decoder", "gpt_neox.", BODY, "layers.{}.", table, HEADS)(config, head)


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
