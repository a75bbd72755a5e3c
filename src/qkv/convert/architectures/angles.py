"""Rotary angles in configs of other libraries: the base, and how long contexts are scaled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.architectures.architecture import Values, wanted
from qkv.errors import UserError

SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
LONGROPE = "longrope"  # which Phi-3 has
THEIR_SCALINGS = {ours: theirs for theirs, ours in SCALINGS.items()}
# Between which rates pairs are squeezed in part: ours, theirs, and the usual value
BOUNDS = {
    "llama3": (("rotary_slow", "low_freq_factor", 1.0), ("rotary_fast", "high_freq_factor", 4.0)),
    "yarn": (("rotary_slow", "beta_slow", 1.0), ("rotary_fast", "beta_fast", 32.0)),
}


def read_angles(config: Mapping[str, Any]) -> Values:
    """How queries and keys are turned; older files say it in two places."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    values = {**config, **rope}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "dynamic":
        _tell_of_dynamic(config)
        kind = "default"
    if kind not in SCALINGS:
        raise UserError(
            f"config.json: the rotary scaling (rope_type) is {kind!r}, but only "
            f"{', '.join(map(repr, SCALINGS))} can be read."
        )
    found: Values = {
        "rotary_base": float(values.get("rope_theta") or 10_000.0),
        "rotary_scaling": SCALINGS[kind],
        "rotary_share": float(values.get("partial_rotary_factor") or 1.0),
    }
    if kind == "default":
        return found
    before = config.get("original_max_position_embeddings")
    before = before or rope.get("original_max_position_embeddings")
    before = before or config["max_position_embeddings"]
    factor = rope.get("factor") or config["max_position_embeddings"] / before
    found["rotary_factor"] = float(factor)
    if kind == "linear":
        return found
    if kind == "yarn":
        _check_yarn(rope, factor)
    bounds = {ours: float(rope.get(name) or usual) for ours, name, usual in BOUNDS[kind]}
    return {**found, "rotary_trained_length": int(before), **bounds}


def _tell_of_dynamic(config: Mapping[str, Any]) -> None:
    """That scaling sets in where the context ends here; up to there it changes nothing."""
    length = config.get("max_position_embeddings", "max_position_embeddings")
    warnings.warn(
        f"Left out of config.json: dynamic rotary scaling, which is for texts of more than "
        f"{length} tokens, where the context ends here.",
        stacklevel=2,
    )


def _check_yarn(rope: Mapping[str, Any], factor: float) -> None:
    """Refuse the variants that came after the paper."""
    wanted(rope, "truncate", (True,), True)
    usual = 0.1 * math.log(factor) + 1.0
    louder = rope.get("attention_factor")
    if louder is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        one, other = (
            0.1 * rope[name] * math.log(factor) + 1.0 for name in ("mscale", "mscale_all_dim")
        )
        louder = one / other
    _check_loudness("yarn", louder, usual, "0.1·ln factor + 1")


def _check_loudness(kind: str, louder: float | None, usual: float, formula: str) -> None:
    """Refuse another factor of the scores than the paper's."""
    if louder is not None and not math.isclose(louder, usual, rel_tol=1e-5):
        raise UserError(
            f"config.json: {kind} multiplies scores by {louder:.4g} squared, but only the paper's "
            f"{usual:.4g} ({formula}) can be read."
        )


def write_angles(config: ModelConfig) -> Values:
    """The angles in their words."""
    kind = THEIR_SCALINGS.get(config.rotary_scaling, config.rotary_scaling)
    found: Values = {"rope_type": kind, "rope_theta": config.rotary_base}
    if config.rotary_share != 1.0:
        found["partial_rotary_factor"] = config.rotary_share
    if kind == "default":
        return found
    found["factor"] = config.rotary_factor
    if kind == "linear":
        return found
    bounds = {name: getattr(config, ours) or usual for ours, name, usual in BOUNDS.get(kind, ())}
    return {**found, "original_max_position_embeddings": config.trained_length, **bounds}


def read_angles_by_type(
    config: Mapping[str, Any], full: tuple[str, float], windowed: tuple[str, float]
) -> tuple[Values, float]:
    """The angles of full layers, for `read_angles`, and the base of layers with a window.

    Older files have the bases in two fields, whose names and usual values are given.
    """
    by_type = config.get("rope_parameters") or {}
    scaling = by_type.get("full_attention") or config.get("rope_scaling") or {}
    local = by_type.get("sliding_attention") or {}
    wanted(local, "rope_type", ("default",), "default")
    base, local_base = (config.get(name) or usual for name, usual in (full, windowed))
    angles = {"rope_scaling": None, "rope_parameters": {"rope_theta": base, **scaling}}
    return angles, float(local.get("rope_theta") or local_base)


def write_angles_by_type(config: ModelConfig) -> Values:
    """The angles of full layers, and of those with a window, in their words."""
    base = config.rotary_window_base or config.rotary_base
    return {
        "full_attention": write_angles(config),
        "sliding_attention": {"rope_type": "default", "rope_theta": base},
    }


def read_longrope(config: Mapping[str, Any]) -> Values:
    """LongRoPE's angles; texts that are longer than the trained context have others there.

    Which ones depends on the length of a text, even for its first tokens, so that a text could not
    grow past that length by one token at a time: here the context ends there.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    values = {**config, **rope}
    trained = int(values["original_max_position_embeddings"])
    factor = max(1.0, rope.get("factor") or config["max_position_embeddings"] / trained)
    usual = math.sqrt(1 + math.log(factor) / math.log(trained))
    _check_loudness("longrope", rope.get("attention_factor"), usual, "√(1 + ln factor / ln length)")
    if config["max_position_embeddings"] > trained:
        warnings.warn(
            f"Left out of config.json: the rotary factors for texts of more than {trained:,} "
            f"tokens, where the context ends here; set max_length to "
            f"{config['max_position_embeddings']:,} in a recipe to train with these.",
            stacklevel=2,
        )
    return {
        "rotary_base": float(values.get("rope_theta") or 10_000.0),
        "rotary_share": float(values.get("partial_rotary_factor") or 1.0),
        "rotary_scaling": LONGROPE,
        "rotary_factor": factor,
        "rotary_trained_length": trained,
        "rotary_short_factors": tuple(map(float, rope["short_factor"])),
        "rotary_long_factors": tuple(map(float, rope["long_factor"])),
        "max_length": min(trained, config["max_position_embeddings"]),
    }


def write_longrope(config: ModelConfig) -> Values:
    """LongRoPE's angles in their words."""
    return {
        "rope_type": LONGROPE,
        "rope_theta": config.rotary_base,
        "partial_rotary_factor": config.rotary_share,
        "original_max_position_embeddings": config.trained_length,
        "short_factor": list(config.rotary_short_factors),
        "long_factor": list(config.rotary_long_factors),
    }
