"""A trace as the road of its steps: what the flow chart draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.inspect.flow import Lane, Step

if TYPE_CHECKING:
    from qkv.inspect.trace import Trace

NAMES = {
    "source.tokens": "source tokens",
    "target.tokens": "target tokens, shifted",
    "target.labels": "labels",
    "source.embedding": "embedding",
    "target.embedding": "embedding",
    "source.input": "input",
    "target.input": "input",
    "query": "queries",
    "key": "keys",
    "value": "values",
    "scores": "scores, masked",
    "weights": "attention weights",
    "heads": "heads",
    "output": "output",
    "residual": "residual and norm",
    "hidden": "inner layer",
    "encoder.output": "encoder's output",
    "decoder.output": "decoder's output",
    "pooled": "the text as one vector",
    "logits": "logits",
    "probabilities": "probabilities",
    "loss": "loss",
}
SUBLAYERS = {
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
    "convolution": "convolution",
}


def road(trace: Trace) -> list[Step]:
    """Every quantity as a step, in the order of the formulas; labels stand at the loss."""
    keys = [key for key in trace if key != "target.labels"]
    if "loss" in keys:
        keys.insert(keys.index("loss"), "target.labels")
    return [_step(trace, key) for key in keys]


def _step(trace: Trace, key: str) -> Step:
    first, *rest = key.split(".")
    level = int(rest[0]) if len(rest) == 3 else None
    axes = ["D/H" if letter == "K" else letter for letter in trace.axes(key)]
    return Step(
        name=_name(key, rest, trace.formula(key)),
        formula=trace.formula(key),
        shape_letters=f"({', '.join(axes)})",
        shape=trace.shape(key),
        key=key,
        lane=_lane(key, first),
        level=level,
    )


def _name(key: str, rest: list[str], formula: str) -> str:
    if len(rest) == 3:
        return f"{SUBLAYERS[rest[1]]}: {_part_name(rest[2], formula)}"
    return NAMES[key]


def _part_name(part: str, formula: str) -> str:
    """A model with its norms before the sublayers has none where the residual is added."""
    return "residual" if part == "residual" and "LayerNorm" not in formula else NAMES[part]


def _lane(key: str, first: str) -> Lane:
    if key == "target.labels" or first in ("pooled", "logits", "probabilities", "loss"):
        return "output"
    return "encoder" if first in ("source", "encoder") else "decoder"
