"""Which layers have a window, as lists of layer types say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.config.model import name_window_layers
from qkv.convert.architectures.architecture import Values
from qkv.errors import UserError

LETTERS = {"full_attention": "f", "sliding_attention": "w"}


def read_windows(config: Mapping[str, Any], window: int, usual: str) -> Values:
    """The window and its layers; `usual` has a letter for each layer where no types are given."""
    types = config.get("layer_types")
    if unknown := sorted(set(types or ()) - set(LETTERS)):
        raise UserError(
            f"config.json: layer_types has {unknown[0]!r}, but only {', '.join(LETTERS)} can be "
            f"read."
        )
    letters = "".join(LETTERS[kind] for kind in types) if types else usual
    return windows_of(config, window, letters, "layer_types", "num_hidden_layers")


def windows_of(
    config: Mapping[str, Any], window: int, letters: str, kinds: str, depth: str
) -> Values:
    """The window and its layers, by a letter for each layer that the field `kinds` gives."""
    if len(letters) != config[depth]:
        raise UserError(
            f"config.json: {kinds} has {len(letters)} layers, but {depth} is {config[depth]}; "
            f"correct one of them."
        )
    if not window or "w" not in letters:
        return {"window": 0}
    return {"window": window, "window_layers": name_window_layers(letters)}


def write_layer_types(config: ModelConfig) -> list[str]:
    """The type of each layer."""
    encoder = config.family == "encoder" and not config.causal
    n_layers = config.n_encoder_layers if encoder else config.n_decoder_layers
    windows = map(config.window_of, range(n_layers))
    return ["sliding_attention" if window else "full_attention" for window in windows]
