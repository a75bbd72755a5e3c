"""Llama (Touvron et al. 2023), and the decoders that differ from it in a few parts and settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from qkv.config import ModelConfig
from qkv.config.model import shortest_pattern
from qkv.config.presets import PRESETS
from qkv.convert.architectures.angles import (
    LONGROPE,
    read_angles,
    read_angles_by_type,
    read_longrope,
    write_angles,
    write_angles_by_type,
    write_longrope,
)
from qkv.convert.architectures.architecture import (
    Architecture,
    Field,
    Fields,
    Values,
    activation,
    wanted,
    write_activation,
)
from qkv.convert.architectures.gpt import HEADS, SIZES
from qkv.convert.architectures.name_tables import Names, Rule, Table, layers
from qkv.convert.architectures.windows import read_windows, write_layer_types
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
RULES = Names("decoder", "model.", BODY, "layers.{}.", LAYER, HEADS)
FIELDS: Fields = {
    **SIZES,
    "d_ff": "intermediate_size",
    "activation": Field("hidden_act", "silu"),
    "norm_epsilon": Field("rms_norm_eps", 1e-6),
    "attention_dropout": Field("attention_dropout", 0.0),
    "tie": Field("tie_word_embeddings", False),
}
TIED: Fields = {**FIELDS, "tie": Field("tie_word_embeddings", True)}
BIASES = {"attention_bias": "self_attn", "mlp_bias": "mlp"}


def read_common(config: Mapping[str, Any], groups: int, length: int) -> Values:
    """What all of this line share: a head's width, key/value heads, the context and the angles.

    `groups` and `length` are usual where a config does not say its key/value heads and context.
    """
    width, heads = config["hidden_size"], config["num_attention_heads"]
    key = config.get("head_dim") or width // heads
    n_kv_heads = int(config.get("num_key_value_heads", groups) or heads)
    angles = read_angles(config)
    wanted({"partial_rotary_factor": angles["rotary_share"]}, "partial_rotary_factor", (1.0,), 1.0)
    return {
        "d_key": 0 if key * heads == width else key,
        "n_kv_heads": 0 if n_kv_heads == heads else n_kv_heads,
        "max_length": config.get("max_position_embeddings", length),
        **angles,
    }


def write_common(config: ModelConfig) -> Values:
    """What all of this line share, from ours."""
    return {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "max_position_embeddings": config.max_length,
        "rope_parameters": write_angles(config),
    }


def read_llama(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Llama's biases, and what all share."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if width % heads:
        raise UserError(
            f"config.json: hidden_size ({width}) is not a multiple of num_attention_heads "
            f"({heads}), which Llama does not allow."
        )
    return {**read_common(config, heads, 2048), "bias": any(map(config.get, BIASES))}


def write_llama(config: ModelConfig) -> Values:
    """Llama's biases, and what all share."""
    return {**write_common(config), **dict.fromkeys(BIASES, config.bias)}


def without_bias(config: Mapping[str, Any]) -> str:
    """The biases that a config leaves out; ours stand in all layers or in none."""
    parts = [part for name, part in BIASES.items() if not config.get(name)]
    return rf"model\.layers\.\d+\.({'|'.join(parts)})\.\w+\.bias" if parts else r"(?!)"


LLAMA = Architecture(
    name="Llama",
    model_type="llama",
    family="decoder",
    classes={"causal": "LlamaForCausalLM"},
    bodies=("LlamaModel",),
    values=PRESETS["llama-7b"],
    fields=FIELDS,
    read=read_llama,
    write=write_llama,
    rules=RULES,
    prefix="model.",
    ignored=r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    copies={"lm_head.weight": "model.embed_tokens.weight"},
    left_out=without_bias,
)


def like_llama(name: str, model_type: str, class_prefix: str, **differences: Any) -> Architecture:
    """An architecture of this line, by what differs."""
    return replace(
        LLAMA,
        name=name,
        model_type=model_type,
        classes={"causal": f"{class_prefix}ForCausalLM"},
        bodies=(f"{class_prefix}Model",),
        **{"left_out": Architecture.left_out, **differences},
    )


# Mistral (Jiang et al. 2023), which is Llama with a window, and Mixtral (2024), with experts


def read_mistral(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Mistral's window, the same in all layers."""
    kinds = set(config.get("layer_types") or ())
    if len(kinds) > 1:
        raise UserError(
            "config.json: layer_types has layers with a window and layers without, but a Mistral "
            "can only be read with the same window in all layers."
        )
    window = 0 if kinds == {"full_attention"} else config.get("sliding_window", 4096) or 0
    return {**read_common(config, 8, 131_072), "window": window}


def write_mistral(config: ModelConfig) -> Values:
    """Mistral's window, from ours."""
    return {**write_common(config), "sliding_window": config.window or None}


def read_mixtral(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Mixtral's angles and window, which it usually has not."""
    usual = {"rope_theta": 1_000_000.0, "sliding_window": None}
    return read_mistral({**usual, **config}, names, head)


def mixtral_rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where Mixtral keeps each weight."""
    block: Table = {
        **{ours: theirs for ours, theirs in LAYER.items() if not ours.startswith("feed_forward.")},
        "feed_forward.router.projection": "block_sparse_moe.gate",
    }
    yield from replace(RULES, block=block)(config, head)
    for layer in range(config.n_decoder_layers):
        yield from layers(
            config,
            f"decoder.blocks.{layer}.feed_forward.experts.{{}}.",
            f"model.layers.{layer}.block_sparse_moe.experts.{{}}.",
            {"inner": ("w1", "w3"), "outer": "w2"},
            config.n_experts,
        )


MISTRAL = like_llama("Mistral", "mistral", "Mistral", read=read_mistral, write=write_mistral)
MIXTRAL = like_llama(
    "Mixtral",
    "mixtral",
    "Mixtral",
    fields={
        **FIELDS,
        "norm_epsilon": Field("rms_norm_eps", 1e-5),
        "n_experts": Field("num_local_experts", 8),
        "n_experts_used": Field("num_experts_per_tok", 2),
    },
    read=read_mixtral,
    write=write_mistral,
    rules=mixtral_rules,
)

# Qwen2 (Yang et al. 2024), with biases on q, k and v, and Qwen3 (2025), with norms of q and k

NORMS: Table = {
    "self_attention.norm.query": "self_attn.q_norm",
    "self_attention.norm.key": "self_attn.k_norm",
}


def read_qwen2(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Qwen's windows, which its later layers may have."""
    n_layers = config["num_hidden_layers"]
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    first = min(config.get("max_window_layers", 28), n_layers)
    windows = read_windows(config, window or 0, "f" * first + "w" * (n_layers - first))
    return {**read_common(config, 32, 32_768), **windows}


def read_qwen3(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Qwen3's heads, which are usually 128 wide, and windows."""
    return read_qwen2({"head_dim": 128, **config}, names, head)


def write_qwen(config: ModelConfig) -> Values:
    """Qwen's windows, from ours."""
    return {
        **write_mistral(config),
        "use_sliding_window": bool(config.window),
        "layer_types": write_layer_types(config),
    }


QWEN2 = like_llama(
    "Qwen2",
    "qwen2",
    "Qwen2",
    values={**PRESETS["llama-7b"], "qkv_bias": "always"},
    read=read_qwen2,
    write=write_qwen,
)
QWEN3 = like_llama(
    "Qwen3",
    "qwen3",
    "Qwen3",
    values={**PRESETS["llama-7b"], "query_key_norm": True},
    needs={"attention_bias": False},
    read=read_qwen3,
    write=write_qwen,
    rules=replace(RULES, block={**LAYER, **NORMS}),
)

# Gemma (Gemma Team 2024), Gemma 2 (2024) and Gemma 3 (2025, its text models)

BOTH_NORMS: Table = {
    **LAYER,
    "self_attention_residual.output_norm": "post_attention_layernorm",
    "feed_forward_residual.norm": "pre_feedforward_layernorm",
    "feed_forward_residual.output_norm": "post_feedforward_layernorm",
}
FULL_BASE = ("rope_theta", 1_000_000.0)
WINDOW_BASE = ("rope_local_base_freq", 10_000.0)
GEMMA_VALUES: Values = {
    **PRESETS["llama-7b"],
    "norm": "rms_plus_one",
    "embedding_scale": True,
    "round_embedding_scale": True,
}
GEMMA_2_VALUES: Values = {**GEMMA_VALUES, "norm_position": "both"}
GEMMA_FIELDS = {ours: theirs for ours, theirs in TIED.items() if ours != "activation"}
GEMMA_NEEDS = {"attention_bias": False, "use_bidirectional_attention": False}


def gemma_values(config: Mapping[str, Any], act: str | None, groups: int, length: int) -> Values:
    """The values that all three share; `act` is the activation that a config names."""
    named = {"hidden_activation": act or "gelu_pytorch_tanh"}
    return {
        **read_common({"head_dim": 256, **config}, groups, length),
        "activation": activation(named, "hidden_activation", "gelu_pytorch_tanh"),
    }


def read_gemma(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Gemma's activation: it says "gelu", and means the approximation with tanh."""
    said = config.get("hidden_activation") or config.get("hidden_act")
    return gemma_values(config, None if said == "gelu" else said, 16, 8192)


def read_gemma2(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Gemma 2's windows and caps."""
    n_layers, window = config["num_hidden_layers"], config.get("sliding_window", 4096) or 0
    return {
        **gemma_values(config, config.get("hidden_activation"), 4, 8192),
        **read_windows(config, window, ("wf" * n_layers)[:n_layers]),
        **_caps(config, 50.0, 30.0),
    }


def read_gemma3(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Gemma 3's windows and caps; layers with a window have a rotary base of their own."""
    n_layers, period = config["num_hidden_layers"], config.get("sliding_window_pattern") or 6
    usual = "".join("f" if layer % period == period - 1 else "w" for layer in range(n_layers))
    windows = read_windows(config, config.get("sliding_window", 4096) or 0, usual)
    angles, local = read_angles_by_type(config, FULL_BASE, WINDOW_BASE)
    return {
        **gemma_values({**config, **angles}, config.get("hidden_activation"), 4, 131_072),
        **windows,
        **_caps(config, 0.0, 0.0),
        "rotary_window_base": local if windows["window"] else 0.0,
    }


def _caps(config: Mapping[str, Any], scores: float, logits: float) -> Values:
    """What scores are divided by, and the caps of scores and logits."""
    divisor = config.get("query_pre_attn_scalar", 256)
    return {
        "score_divisor": 0.0 if divisor == config.get("head_dim", 256) else float(divisor),
        "score_cap": float(config.get("attn_logit_softcapping", scores) or 0.0),
        "logit_cap": float(config.get("final_logit_softcapping", logits) or 0.0),
    }


def write_gemma(config: ModelConfig) -> Values:
    """Gemma's activation, which goes by two names."""
    named = write_activation(config.activation).replace("gelu_new", "gelu_pytorch_tanh")
    return {**write_common(config), "hidden_act": named, "hidden_activation": named}


def write_gemma2(config: ModelConfig) -> Values:
    """Gemma 2's windows and caps, from ours."""
    divisor = config.score_divisor or config.d_head
    return {
        **write_gemma(config),
        "query_pre_attn_scalar": int(divisor) if divisor == int(divisor) else divisor,
        "attn_logit_softcapping": config.score_cap or None,
        "final_logit_softcapping": config.logit_cap or None,
        "sliding_window": config.window or None,
        "layer_types": write_layer_types(config),
    }


def write_gemma3(config: ModelConfig) -> Values:
    """Gemma 3's windows and caps, and the angles of both kinds of layers."""
    return {**write_gemma2(config), "rope_parameters": write_angles_by_type(config)}


GEMMA = like_llama(
    "Gemma",
    "gemma",
    "Gemma",
    values=GEMMA_VALUES,
    fields=GEMMA_FIELDS,
    needs=GEMMA_NEEDS,
    read=read_gemma,
    write=write_gemma,
)
GEMMA2 = replace(
    GEMMA,
    name="Gemma 2",
    model_type="gemma2",
    classes={"causal": "Gemma2ForCausalLM"},
    bodies=("Gemma2Model",),
    values=GEMMA_2_VALUES,
    read=read_gemma2,
    write=write_gemma2,
    rules=replace(RULES, block=BOTH_NORMS),
)
GEMMA3 = replace(
    GEMMA,
    name="Gemma 3",
    model_type="gemma3_text",
    classes={"causal": "Gemma3ForCausalLM"},
    bodies=("Gemma3TextModel",),
    values={**GEMMA_2_VALUES, "query_key_norm": True},
    needs={**GEMMA_NEEDS, "attn_logit_softcapping": None},
    read=read_gemma3,
    write=write_gemma3,
    rules=replace(RULES, block={**BOTH_NORMS, **NORMS}),
)

# Phi-3 (Abdin et al. 2024) and Phi-4-mini: Llama with fused matrices and LongRoPE

LONGROPE_NAMES = {"su": LONGROPE, "yarn": LONGROPE, LONGROPE: LONGROPE, "default": "default"}
TRAINED = 4096  # tokens, where a config does not say it


def read_phi3(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """Phi-3's window and angles; it calls LongRoPE by three names."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    said = {"rope_type": rope.get("rope_type") or rope.get("type")}
    kind = LONGROPE_NAMES[wanted(said, "rope_type", LONGROPE_NAMES, "default")]
    usual = {
        "original_max_position_embeddings": TRAINED,
        "max_position_embeddings": TRAINED,
        **config,
    }
    plain = {**usual, "rope_scaling": None, "rope_parameters": None, "partial_rotary_factor": None}
    return {
        **read_common(plain, 0, TRAINED),
        "window": config.get("sliding_window") or 0,
        **(read_longrope(usual) if kind == LONGROPE else read_angles(config)),
    }


def write_phi3(config: ModelConfig) -> Values:
    """Phi-3's window and angles, from ours."""
    longrope = config.rotary_scaling == LONGROPE
    trained = config.trained_length if longrope else config.max_length
    length = round(trained * config.rotary_factor) if longrope else config.max_length
    return {
        **write_mistral(config),
        "max_position_embeddings": length,
        "original_max_position_embeddings": trained,
        "embd_pdrop": config.dropout,
        "rope_parameters": write_longrope(config) if longrope else write_angles(config),
    }


PHI3 = like_llama(
    "Phi-3",
    "phi3",
    "Phi3",
    fields={
        **FIELDS,
        "norm_epsilon": Field("rms_norm_eps", 1e-5),
        "dropout": Field("resid_pdrop", 0.0),
    },
    read=read_phi3,
    write=write_phi3,
    rules=replace(
        RULES,
        block={
            **LAYER,
            "self_attention.query_key_value": "self_attn.qkv_proj",
            "feed_forward.inner": "mlp.gate_up_proj",
        },
    ),
)

# SmolLM3 (Hugging Face 2025): Llama whose every fourth layer turns nothing


def read_smollm3(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """SmolLM3's layers without angles, which may have windows, and its biases."""
    letters = _rotary_letters(config)
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    windowed = "".join("w" if letter == "n" else "f" for letter in letters)
    pattern = shortest_pattern(letters)
    return {
        **read_common({"rope_theta": 2_000_000.0, **config}, 4, 32_768),
        **read_windows(config, window or 0, windowed),
        "rotary_layers": "all" if pattern == "r" else pattern,
        "bias": any(map(config.get, BIASES)),
    }


def _rotary_letters(config: Mapping[str, Any]) -> str:
    """A letter for each layer: r where it has rotary positions, n where it has none."""
    n_layers, period = config["num_hidden_layers"], config.get("no_rope_layer_interval") or 4
    given = config.get("no_rope_layers")
    given = given or [int((layer + 1) % period != 0) for layer in range(n_layers)]
    if not isinstance(given, list) or len(given) < n_layers or {*given} - {0, 1}:
        raise UserError(
            f"config.json: no_rope_layers is {given!r}, but must have a 1 (rotary) or a 0 (none) "
            f"for each of the {n_layers} layers."
        )
    return "".join("r" if rotary else "n" for rotary in given[:n_layers])


def write_smollm3(config: ModelConfig) -> Values:
    """SmolLM3's layers without angles, windows and biases, from ours."""
    kinds = map(config.positions_of, range(config.n_decoder_layers))
    rotary = [int(kind != "none") for kind in kinds]
    return {**write_qwen(config), **write_llama(config), "no_rope_layers": rotary}


SMOLLM3 = like_llama(
    "SmolLM3",
    "smollm3",
    "SmolLM3",
    fields=TIED,
    read=read_smollm3,
    write=write_smollm3,
    left_out=without_bias,
)
