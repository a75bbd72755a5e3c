"""GPT-Neo (Black et al. 2021), GPT-3's layers with a window in every other one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.model import name_window_layers
from qkv.config.presets import PRESETS
from qkv.convert.architectures.architecture import (
    Architecture,
    Field,
    Fields,
    Values,
    read_fields,
    write_fields,
)
from qkv.convert.architectures.gpt import GPT2_BODY, HEADS, NOT_LEARNT
from qkv.convert.architectures.name_tables import Names, Table
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
FIELDS: Fields = {
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
}
LETTERS = {"global": "f", "local": "w"}


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """GPT-Neo's config in our words."""
    n_layers = config["num_layers"]
    letters = _letters(config.get("attention_types") or [[["global", "local"], 12]])
    if len(letters) != n_layers:
        raise UserError(
            f"config.json: attention_types has {len(letters)} layers, but num_layers is "
            f"{n_layers}; correct one of them."
        )
    windows = {"window": config.get("window_size", 256)} if "w" in letters else {}
    return {
        **PRESETS["gpt2"],
        **read_fields(config, FIELDS),
        "d_ff": config.get("intermediate_size") or 4 * config["hidden_size"],
        "qkv_bias": "never",
        "score_division": False,
        **(windows and {**windows, "window_layers": name_window_layers(letters)}),
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
        **write_fields(config, FIELDS),
        "intermediate_size": config.d_ff,
        "attention_types": [[kinds, 1]],
        "window_size": config.window or 256,
        "embed_dropout": config.dropout,
    }


GPT_NEO = Architecture(
    name="GPT-Neo",
    model_type="gpt_neo",
    family="decoder",
    classes={"causal": "GPTNeoForCausalLM"},
    bodies=("GPTNeoModel",),
    read_config=read_config,
    write_config=write_config,
    rules=Names("decoder", "transformer.", GPT2_BODY, "h.{}.", LAYER, HEADS),
    prefix="transformer.",
    ignored=NOT_LEARNT.replace("attn", "attn\\.attention"),
    copies={"lm_head.weight": "transformer.wte.weight"},
)
