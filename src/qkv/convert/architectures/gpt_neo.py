"""GPT-Neo (Black et al. 2021), GPT-3's layers with a window in every other one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.model import name_window_layers
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    THEIR_ACTIVATIONS,
    Architecture,
    Values,
    activation,
)
from qkv.convert.architectures.gpt import GPT2_BODY, NOT_LEARNT, OUTPUT
from qkv.convert.architectures.name_tables import Rule, Table, layers, modules
from qkv.errors import UserError

PROJECTIONS = tuple(f"attn.attention.{name}_proj" for name in "qkv")
LAYER: Table = {
    "self_attention.query_key_value": PROJECTIONS,
    "self_attention.output": "attn.attention.out_proj",
    "self_attention_residual.norm": "ln_1",
    "feed_forward.inner": "mlp.c_fc",
    "feed_forward.outer": "mlp.c_proj",
    "feed_forward_residual.norm": "ln_2",
}
LETTERS = {"global": "f", "local": "w"}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT-Neo's config in our words."""
    n_layers, width = config["num_layers"], config["hidden_size"]
    letters = _letters(config.get("attention_types") or [[["global", "local"], 12]])
    if len(letters) != n_layers:
        raise UserError(
            f"config.json: attention_types has {len(letters)} layers, but num_layers is "
            f"{n_layers}; correct one of them."
        )
    windows = {"window": config.get("window_size", 256)} if "w" in letters else {}
    return {
        **PRESETS["gpt2"],
        "n_decoder_layers": n_layers,
        "vocab_size": config["vocab_size"],
        "d_model": width,
        "n_heads": config["num_heads"],
        "d_ff": config.get("intermediate_size") or 4 * width,
        "max_length": config.get("max_position_embeddings", 2048),
        "activation": activation(config, "activation_function", "gelu_new"),
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "qkv_bias": "never",
        "score_division": False,
        **(windows and {**windows, "window_layers": name_window_layers(letters)}),
        "dropout": float(config.get("resid_dropout") or 0.0),
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
        "tie": "output" if config.get("tie_word_embeddings", True) else "none",
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


def write_config(config: ModelConfig) -> Values:
    """GPT-Neo's config, from ours."""
    windows = map(config.window_of, range(config.n_decoder_layers))
    kinds = ["local" if window else "global" for window in windows]
    return {
        "num_layers": config.n_decoder_layers,
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_length,
        "activation_function": THEIR_ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_epsilon,
        "attention_types": [[kinds, 1]],
        "window_size": config.window or 256,
        "resid_dropout": config.dropout,
        "embed_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tie in ("all", "output"),
    }


def rules(config: ModelConfig, head: str) -> Iterator[Rule]:
    """Where they keep each weight."""
    yield from modules(config, "", "transformer.", GPT2_BODY)
    yield from layers(
        config, "decoder.blocks.{}.", "transformer.h.{}.", LAYER, config.n_decoder_layers
    )
    yield from modules(config, "", "", OUTPUT)


GPT_NEO = Architecture(
    name="GPT-Neo",
    model_type="gpt_neo",
    family="decoder",
    classes={"causal": "GPTNeoForCausalLM"},
    bodies=("GPTNeoModel",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    prefix="transformer.",
    ignored=NOT_LEARNT.replace("attn", "attn\\.attention"),
    copies={"lm_head.weight": "transformer.wte.weight"},
)
