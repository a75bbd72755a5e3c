"""GPT (Radford et al. 2018), GPT-2 (2019), and the decoders that differ in a few parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    activation,
    wanted,
    write_activation,
)
from qkv.convert.architectures.marian import ENCODER_LAYER
from qkv.convert.architectures.name_tables import TRANSPOSED, Module, Names, Table, after, by_head
from qkv.convert.architectures.windows import windows_of
from qkv.errors import UserError

# Their matrices multiply from the right, so they stand on their side.
LAYER: Table = {
    "self_attention.query_key_value": Module("attn.c_attn", TRANSPOSED),
    "self_attention.output": Module("attn.c_proj", TRANSPOSED),
    "self_attention_residual.norm": "ln_1",
    "feed_forward.inner": Module("mlp.c_fc", TRANSPOSED),
    "feed_forward.outer": Module("mlp.c_proj", TRANSPOSED),
    "feed_forward_residual.norm": "ln_2",
}
GPT_BODY: Table = {"embedding.table": "tokens_embed", "decoder.positions.table": "positions_embed"}
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
SIZES: Fields = {  # as most decoders after GPT-2 call them
    "n_decoder_layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
}
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


def read_gpt(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT's sizes and activation; its feed-forward layers are always four times as wide."""
    return {
        "max_length": config.get("n_positions") or config["n_ctx"],
        "d_ff": 4 * config["n_embd"],
        "activation": GPT_ACTIVATIONS[wanted(config, "afn", GPT_ACTIVATIONS, "gelu")],
    }


def write_gpt(config: ModelConfig) -> Values:
    """GPT's sizes and activation, from ours."""
    return {
        "n_positions": config.max_length,
        "embd_pdrop": config.dropout,
        "afn": THEIR_GPT_ACTIVATIONS.get(config.activation),
    }


GPT = Architecture(
    name="GPT",
    model_type="openai-gpt",
    family="decoder",
    classes={"causal": "OpenAIGPTLMHeadModel"},
    bodies=("OpenAIGPTModel",),
    values=PRESETS["gpt"],
    fields=FIELDS,
    read=read_gpt,
    write=write_gpt,
    rules=Names("decoder", "transformer.", GPT_BODY, "h.{}.", LAYER, HEADS),
    prefix="transformer.",
    ignored=NOT_LEARNT,
    copies={"lm_head.weight": "transformer.tokens_embed.weight"},
)


def read_gpt2(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT-2's sizes and activation."""
    return {
        "max_length": config.get("n_positions") or config["n_ctx"],
        "d_ff": config.get("n_inner") or 4 * config["n_embd"],
        "activation": activation(config, "activation_function", "gelu_new"),
    }


def write_gpt2(config: ModelConfig) -> Values:
    """GPT-2's sizes and activation, from ours."""
    return {
        "n_positions": config.max_length,
        "embd_pdrop": config.dropout,
        "n_inner": config.d_ff,
        "activation_function": write_activation(config.activation),
    }


GPT2 = replace(
    GPT,
    name="GPT-2",
    model_type="gpt2",
    classes={"causal": "GPT2LMHeadModel"},
    bodies=("GPT2Model",),
    values=PRESETS["gpt2"],
    fields={**FIELDS, "score_division": Field("scale_attn_weights", True)},
    needs={"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    read=read_gpt2,
    write=write_gpt2,
    rules=Names("decoder", "transformer.", GPT2_BODY, "h.{}.", LAYER, HEADS),
    copies={"lm_head.weight": "transformer.wte.weight"},
)

# GPT-Neo (Black et al. 2021), GPT-3's layers with a window in every other one

LETTERS = {"global": "f", "local": "w"}


def read_neo(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT-Neo's width and windows."""
    letters = _letters(config.get("attention_types") or [[["global", "local"], 12]])
    window = config.get("window_size", 256)
    return {
        "d_ff": config.get("intermediate_size") or 4 * config["hidden_size"],
        **windows_of(config, window, letters, "attention_types", "num_layers"),
    }


def _letters(types: Any) -> str:
    """A letter for each layer: [[["global", "local"], 2]] is full, windowed, full, windowed."""
    try:
        return "".join(LETTERS[kind] for kinds, times in types for kind in kinds * times)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"config.json: attention_types is {types!r}, but must list layers that are global or "
            f"local, and how many times they repeat."
        ) from error


def write_neo(config: ModelConfig) -> Values:
    """GPT-Neo's width and windows, from ours."""
    windows = map(config.window_of, range(config.n_decoder_layers))
    kinds = ["local" if window else "global" for window in windows]
    return {
        "intermediate_size": config.d_ff,
        "attention_types": [[kinds, 1]],
        "window_size": config.window or 256,
        "embed_dropout": config.dropout,
    }


GPT_NEO = replace(
    GPT2,
    name="GPT-Neo",
    model_type="gpt_neo",
    classes={"causal": "GPTNeoForCausalLM"},
    bodies=("GPTNeoModel",),
    values={**PRESETS["gpt2"], "qkv_bias": "never", "score_division": False},
    fields={
        "n_decoder_layers": "num_layers",
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "n_heads": "num_heads",
        "max_length": Field("max_position_embeddings", 2048),
        "activation": Field("activation_function", "gelu_new"),
        "norm_epsilon": Field("layer_norm_epsilon", 1e-5),
        "dropout": Field("resid_dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "tie": Field("tie_word_embeddings", True),
    },
    needs={},
    read=read_neo,
    write=write_neo,
    rules=Names(
        "decoder",
        "transformer.",
        GPT2_BODY,
        "h.{}.",
        {
            "self_attention.query_key_value": tuple(f"attn.attention.{x}_proj" for x in "qkv"),
            "self_attention.output": "attn.attention.out_proj",
            "self_attention_residual.norm": "ln_1",
            "feed_forward.inner": "mlp.c_fc",
            "feed_forward.outer": "mlp.c_proj",
            "feed_forward_residual.norm": "ln_2",
        },
        HEADS,
    ),
    ignored=NOT_LEARNT.replace("attn", "attn\\.attention"),
)

# GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)


def fused_layer(attention: str) -> Table:
    """A layer whose matrix of queries, keys and values has those of a head together."""
    fused = Module(f"{attention}.query_key_value", lambda config: by_head(config.n_heads))
    return {
        "self_attention.query_key_value": fused,
        "self_attention.output": f"{attention}.dense",
        "self_attention_residual.norm": "input_layernorm",
        "feed_forward.inner": "mlp.dense_h_to_4h",
        "feed_forward.outer": "mlp.dense_4h_to_h",
        "feed_forward_residual.norm": "post_attention_layernorm",
    }


def read_neox(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT-NeoX's angles, which older files say in words of their own."""
    older = {
        "rope_theta": config.get("rotary_emb_base"),
        "partial_rotary_factor": config.get("rotary_pct", 0.25),
    }
    return read_angles({**older, **config})


def write_neox(config: ModelConfig) -> Values:
    """GPT-NeoX's angles, from ours."""
    angles = {"partial_rotary_factor": config.rotary_share, **write_angles(config)}
    return {"rope_parameters": angles}


GPT_NEOX = Architecture(
    name="GPT-NeoX",
    model_type="gpt_neox",
    family="decoder",
    classes={"causal": "GPTNeoXForCausalLM"},
    bodies=("GPTNeoXModel",),
    values={**PRESETS["gpt2"], "positions": "rotary"},
    fields={
        **SIZES,
        "d_ff": "intermediate_size",
        "max_length": Field("max_position_embeddings", 2048),
        "activation": Field("hidden_act", "gelu"),
        "norm_epsilon": Field("layer_norm_eps", 1e-5),
        "parallel": Field("use_parallel_residual", True),
        "dropout": Field("hidden_dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "tie": Field("tie_word_embeddings", False),
    },
    needs={"attention_bias": True},
    read=read_neox,
    write=write_neox,
    rules=Names(
        "decoder",
        "gpt_neox.",
        {"embedding.table": "embed_in", "decoder.norm": "final_layer_norm"},
        "layers.{}.",
        fused_layer("attention"),
        {"causal": {"output.projection": "embed_out"}},
    ),
    prefix="gpt_neox.",
    renamed=((r"^lm_head\.", "embed_out."),),
    # What a token may see, and rates of angles, which older files hold
    ignored=r"(gpt_neox\.)?layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",
    copies={"embed_out.weight": "gpt_neox.embed_in.weight"},
)

# BLOOM (Le Scao et al. 2022)


def read_bloom(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """BLOOM's sizes, which go by two names; its feed-forward layers are four times as wide."""
    width = config.get("n_embed") or config["hidden_size"]
    return {
        "n_decoder_layers": config.get("n_layer") or config["num_hidden_layers"],
        "d_model": width,
        "n_heads": config.get("n_head") or config["num_attention_heads"],
        "d_ff": 4 * width,
    }


def write_bloom(config: ModelConfig) -> Values:
    """BLOOM's sizes, from ours."""
    return {
        "n_layer": config.n_decoder_layers,
        "hidden_size": config.d_model,
        "n_head": config.n_heads,
    }


BLOOM = Architecture(
    name="BLOOM",
    model_type="bloom",
    family="decoder",
    classes={"causal": "BloomForCausalLM"},
    bodies=("BloomModel",),
    values={**PRESETS["gpt2"], "positions": "alibi", "embedding_norm": True},
    fields={
        "vocab_size": "vocab_size",
        "max_length": Field("seq_length", 2048),
        "norm_epsilon": Field("layer_norm_epsilon", 1e-5),
        "dropout": Field("hidden_dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "tie": Field("tie_word_embeddings", True),
    },
    needs={"apply_residual_connection_post_layernorm": False},
    read=read_bloom,
    write=write_bloom,
    rules=Names(
        "decoder",
        "transformer.",
        {
            "embedding.table": "word_embeddings",
            "decoder.input_norm": "word_embeddings_layernorm",
            "decoder.norm": "ln_f",
        },
        "h.{}.",
        fused_layer("self_attention"),
        HEADS,
    ),
    prefix="transformer.",
    copies={"lm_head.weight": "transformer.word_embeddings.weight"},
)

# OPT (Zhang et al. 2022)


def read_opt(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Refuse what is not as most released models have it."""
    width = config["hidden_size"]
    wanted(config, "word_embed_proj_dim", (width,), width)  # other than opt-350m's
    return {}


OPT = Architecture(
    name="OPT",
    model_type="opt",
    family="decoder",
    classes={"causal": "OPTForCausalLM"},
    bodies=("OPTModel",),
    values={**PRESETS["gpt2"], "norm_epsilon": 1e-5},  # they have no other
    fields={
        **SIZES,
        "d_ff": "ffn_dim",
        "max_length": Field("max_position_embeddings", 2048),
        "activation": Field("activation_function", "relu"),
        "bias": Field("enable_bias", True),
        "dropout": Field("dropout", 0.1),
        "attention_dropout": Field("attention_dropout", 0.0),
        "tie": Field("tie_word_embeddings", True),
    },
    needs={
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "layer_norm_elementwise_affine": True,
    },
    read=read_opt,
    write=lambda config: {"word_embed_proj_dim": config.d_model},
    rules=Names(
        "decoder",
        "model.decoder.",
        {
            "embedding.table": "embed_tokens",
            "decoder.positions.table": Module("embed_positions", after(2)),  # as in BART
            "decoder.norm": "final_layer_norm",
        },
        "layers.{}.",
        ENCODER_LAYER,
        HEADS,
    ),
    prefix="model.",
    copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
)
