"""SmolLM3 (Hugging Face 2025): Llama whose every fourth layer turns nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.model import shortest_pattern
from qkv.convert.architectures.architecture import Values
from qkv.convert.architectures.llama import (
    BIASES,
    like_llama,
    llama_values,
    read_groups,
    without_bias,
    write_llama,
)
from qkv.convert.architectures.windows import read_windows, write_layer_types
from qkv.errors import UserError


def read_config(config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
    """SmolLM3's config in our words."""
    letters = _rotary_letters(config)
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    windowed = "".join("w" if letter == "n" else "f" for letter in letters)
    pattern = shortest_pattern(letters)
    usual = {"rope_theta": 2_000_000.0, "tie_word_embeddings": True}
    return {
        **llama_values({**usual, **config}),
        **read_windows(config, window or 0, windowed),
        "rotary_layers": "all" if pattern == "r" else pattern,
        "n_kv_heads": read_groups(config, 4),
        "bias": any(config.get(name) for name in BIASES),
        "max_length": config.get("max_position_embeddings", 32_768),
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


def write_config(config: ModelConfig) -> Values:
    """SmolLM3's config, from ours."""
    kinds = map(config.positions_of, range(config.n_decoder_layers))
    return {
        **write_llama(config),
        "no_rope_layers": [int(kind != "none") for kind in kinds],
        "use_sliding_window": bool(config.window),
        "sliding_window": config.window or None,
        "layer_types": write_layer_types(config),
    }


SMOLLM3 = like_llama(
    "SmolLM3", "smollm3", "SmolLM3", read_config, write_config, left_out=without_bias
)
