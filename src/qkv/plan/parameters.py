"""How many parameters a model has, part by part."""

from __future__ import annotations

import math
from functools import lru_cache

from qkv.config import ModelConfig
from qkv.model import parameter_shapes
from qkv.plan.passes import FLOAT

PARTS = ("embeddings", "attention", "feed-forward", "norms", "output")
_OUTPUTS = ("output.", "head.", "pair_head.", "pooler.", "vector.")


@lru_cache(maxsize=8)
def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each parameter; remembered, since plans ask again and again."""
    return parameter_shapes(config)


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Count the parameters of each part; shared ones count once, where they are first used."""
    counts: dict[str, int] = dict.fromkeys(PARTS, 0)
    for name, shape in shapes_of(config).items():
        counts[_part_of(name)] += math.prod(shape)
    return counts


def _part_of(name: str) -> str:
    if "norm." in name:
        return "norms"
    if "attention" in name:
        return "attention"
    if "feed_forward" in name or ".neighbours." in name:
        return "feed-forward"
    return "output" if name.startswith(_OUTPUTS) else "embeddings"


def product_weights(config: ModelConfig) -> int:
    """Count the weights of matrices that products inside of the blocks read."""
    return sum(
        math.prod(shape)
        for name, shape in shapes_of(config).items()
        if ".blocks." in name and len(shape) == 2
    )


def table_bytes(config: ModelConfig) -> int:
    """Bytes of fixed tables of positions, which are no parameters."""
    stacks = 2 if config.family == "encoder-decoder" else 1
    width = {"rotary": 2 * config.d_rotary}.get(config.positions, 0)
    if config.positions.startswith("sinusoidal"):
        width = config.embedding_width
    return stacks * config.n_positions * width * FLOAT
