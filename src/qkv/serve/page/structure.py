"""The structure of a loaded model: what the page draws before it knows any number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import torch

from qkv.config import ModelConfig
from qkv.inspect.draw.language import Language, language, localized_formula
from qkv.inspect.trace.inputs import Inputs, OutputKind, Side
from qkv.inspect.trace.notation import Quantity
from qkv.inspect.trace.trace import Trace
from qkv.model import Model, parameter_shapes
from qkv.serve.page.actions import actions, examples

PARTS = ("family", "norm", "norm_position", "parallel", "activation", "gated", "positions")
SIZES = ("d_model", "d_ff", "d_head", "n_heads", "kv_heads", "vocab_size", "max_length")
OTHERS = ("tie", "window", "causal", "score_division")
FACTS = (*PARTS, "shared_layers", "n_experts", *SIZES, *OTHERS)


def structure(name: str, task: Any, shown_in: Language = "en") -> dict[str, Any]:
    """Describe a model: its facts, stacks with the stations of a layer, and outputs."""
    config = task.model.config
    with language(shown_in):
        return _describe(name, task, config, _quantities(task.model))


def _describe(
    name: str, task: Any, config: ModelConfig, every: dict[str, Quantity]
) -> dict[str, Any]:
    return {
        "model": name,
        "actions": actions(task),
        "examples": examples(task),
        "parameters": sum(map(math.prod, parameter_shapes(config).values())),
        "facts": {fact: getattr(config, fact) for fact in FACTS} | _position_facts(config),
        "stacks": list(_stacks(config, every)),
        "outputs": [_station(every[key]) for key in OUTPUTS if key in every],
    }


OUTPUTS = ("pooled", "logits", "probabilities")


def _quantities(model: Model) -> dict[str, Quantity]:
    """Quantities of any pass, without the weights."""
    every = Trace(model, _unread(model.config)).quantities
    return {key: found for key, found in every.items() if not found.is_weight}


def _unread(config: ModelConfig) -> Inputs:
    """Inputs of one token that is never read, for quantities without numbers."""
    side = Side(torch.zeros(1, 1, dtype=torch.long), (("",),))
    kind: OutputKind = "none" if config.family == "encoder" and config.head == "none" else "tokens"
    return Inputs(
        source=side if config.family != "decoder" else None,
        target=side if config.family != "encoder" else None,
        output_kind=kind,
    )


def _position_facts(config: ModelConfig) -> dict[str, bool]:
    """Where the position scheme acts: on the input, on queries and keys, on the scores."""
    return {
        "adds_positions": config.positions.startswith(("sinusoidal", "learned")),
        "turns_positions": config.positions == "rotary",
        "biases_scores": config.biases_scores,
    }


def _stacks(config: ModelConfig, every: dict[str, Quantity]) -> Iterator[dict[str, Any]]:
    """Stacks in the order of computation, each with the stations of its layers."""
    counts = {"encoder": config.n_encoder_layers, "decoder": config.n_decoder_layers}
    for name, side in (("encoder", "source"), ("decoder", "target")):
        if f"{name}.output" not in every:
            continue
        inside = [key for key in every if re.match(rf"{name}\.\d+\.\w+\.", key)]
        yield {
            "name": name,
            "side": side,
            "n_layers": counts[name],
            "inputs": [_station(every[key]) for key in every if key.startswith(f"{side}.")],
            "sublayers": _sublayers(every, inside),
            "output": _station(every[f"{name}.output"]),
        }


def _sublayers(every: dict[str, Quantity], inside: list[str]) -> list[dict[str, Any]]:
    """Sublayers of a layer, with the layers that have them and their stations."""
    found: dict[str, dict[str, Any]] = {}
    for key in inside:
        _, layer, name, part = key.split(".", 3)
        sublayer = found.setdefault(name, {"name": name, "layers": [], "stations": []})
        if int(layer) not in sublayer["layers"]:
            sublayer["layers"].append(int(layer))
        if int(layer) == sublayer["layers"][0]:
            sublayer["stations"].append({**_station(every[key]), "part": part})
    return list(found.values())


def _station(quantity: Quantity) -> dict[str, Any]:
    return {
        "key": quantity.key,
        "name": quantity.name,
        "formula": localized_formula(quantity.formula),
        "axes": list(quantity.axes),
        "has_heads": quantity.has_heads,
        "computed": quantity.make is not None,
        "detail": quantity.is_detail,
    }
