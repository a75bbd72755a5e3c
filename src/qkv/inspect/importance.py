"""What a part is worth: the output without it, or with it taken from another pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.inspect.trace import Trace

Score = Callable[["Trace"], float]
"""What is asked of a pass, as one number: a loss, a logit, a probability."""


def log_probability(trace: Trace) -> float:
    """Mean log P of the labels: what `loss` is the negative of."""
    return -float(trace["loss"])


def head_importance(
    trace: Trace,
    attention: str = "self_attention",
    stack: str = "decoder",
    score: Score = log_probability,
) -> Tensor:
    """How much the score falls when each head is silenced alone, (layers, heads)."""
    layers = [key.removesuffix(".heads") for key in trace.keys(f"{stack}.*.{attention}.heads")]
    if not layers:
        raise UserError(f"This model has no {stack} with {attention}.")
    whole, heads = score(trace), range(trace.sizes["H"])
    return torch.tensor(
        [[whole - score(trace.silence(layer, head)) for head in heads] for layer in layers]
    )


def patching_map(
    clean: Trace, corrupted: Trace, keys: Sequence[str], score: Score = log_probability
) -> Tensor:
    """How much of the score each part brings back, (keys, tokens).

    The corrupted pass gets one token's part of one quantity from the clean pass. 0 leaves the score
    as bad as it was; 1 makes it as good as the clean one.
    """
    good, bad = score(clean), score(corrupted)
    if good == bad:
        raise UserError("Both passes have the same score, so that there is nothing to bring back.")
    rows = []
    for key in keys:
        letter = next((letter for letter in clean.axes(key) if letter in "ST"), None)
        if letter is None:
            raise UserError(f"{key} has no tokens whose part could be brought back.")
        rows.append(
            [
                (score(corrupted.patch(clean, key, positions=[place])) - bad) / (good - bad)
                for place in range(clean.sizes[letter])
            ]
        )
    return torch.tensor(rows)
