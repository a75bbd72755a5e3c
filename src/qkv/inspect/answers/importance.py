"""The worth of a part: the score without it, or with it taken from another pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.trace.trace import Trace

Score = Callable[[Trace], float]
"""A number about a pass: a loss, a logit, a probability."""


def log_probability(trace: Trace) -> float:
    """Mean log P of the labels: the negative of `loss`."""
    return -float(trace["loss"])


def head_importance(
    trace: Trace,
    attention: str = "self_attention",
    stack: str = "decoder",
    score: Score = log_probability,
) -> Tensor:
    """Measure how much the score falls when each head is silenced alone, (layers, heads)."""
    layers = [key.removesuffix(".heads") for key in trace.names(f"{stack}.*.{attention}.heads")]
    if not layers:
        raise UserError(f"This model has no {stack} with {attention}.")
    whole, heads = score(trace), range(trace.sizes["H"])
    return torch.tensor(
        [[whole - score(trace.silence(layer, head)) for head in heads] for layer in layers]
    )


def patching_map(
    clean: Trace, corrupted: Trace, keys: Sequence[str], score: Score = log_probability
) -> Tensor:
    """Measure how much of the score one patched token restores, (keys, tokens).

    The corrupted pass gets one token of one quantity from the clean pass. 0 leaves the score as bad
    as it was; 1 makes it as good as the clean one.
    """
    good, bad = score(clean), score(corrupted)
    if good == bad:
        raise UserError("Both passes have the same score, so there is nothing to restore.")
    rows = []
    for key in keys:
        letter = next((letter for letter in clean.axes(key) if letter in ("S", "T")), None)
        if letter is None:
            raise UserError(f"{key} has no tokens to patch; name a quantity that has.")
        patched = [
            corrupted.patch(clean, key, positions=[position])
            for position in range(clean.sizes[letter])
        ]
        rows.append([(score(trace) - bad) / (good - bad) for trace in patched])
    return torch.tensor(rows)
