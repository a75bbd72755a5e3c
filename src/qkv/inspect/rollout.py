"""Attention rollout: attention maps multiplied through the layers.

It treats what is looked at as if it were handed on unchanged, and knows nothing of values and
feed-forward layers: `attribution` is the sounder answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.inspect.lens import stack_of
from qkv.model import EncoderDecoder

if TYPE_CHECKING:
    from qkv.inspect.trace import Trace


def rollout(trace: Trace, stack: str | None = None, row: int = 0) -> Tensor:
    """Attention maps multiplied through the layers, half of each token staying where it is.

    Of an encoder-decoder: what target tokens (T) get of source tokens (S), unless one stack is
    asked for, which gives what its tokens get of each other.
    """
    if stack is None and isinstance(trace.model, EncoderDecoder):
        return _across(trace, row)
    return _within(trace, stack_of(trace, stack), row)


def _within(trace: Trace, stack: str, row: int) -> Tensor:
    count = len(trace.tokens("source" if stack == "encoder" else "target", row))
    handed = torch.eye(count)
    for at in _layers(trace, stack):
        handed = _mixed(trace, f"{at}.self_attention", row, count, count) @ handed
    return handed


def _across(trace: Trace, row: int) -> Tensor:
    n_source, n_target = len(trace.tokens("source", row)), len(trace.tokens("target", row))
    memory = _within(trace, "encoder", row)
    handed = torch.zeros(n_target, n_source)
    for at in _layers(trace, "decoder"):
        handed = _mixed(trace, f"{at}.self_attention", row, n_target, n_target) @ handed
        looked = _mean_weights(trace, f"{at}.cross_attention", row)[:n_target, :n_source]
        handed = (handed + looked @ memory) / 2
    return handed


def _layers(trace: Trace, stack: str) -> list[str]:
    return [
        key.removesuffix(".feed_forward.residual")
        for key in trace.keys(f"{stack}.*.feed_forward.residual")
    ]


def _mixed(trace: Trace, at: str, row: int, n_queries: int, n_keys: int) -> Tensor:
    """(A + I) / 2: half is what is looked at, half what was there."""
    looked = _mean_weights(trace, at, row)[:n_queries, :n_keys]
    return (looked + torch.eye(n_queries)) / 2


def _mean_weights(trace: Trace, at: str, row: int) -> Tensor:
    (value,) = trace.peek([f"{at}.weights"]).values()
    return value[row].float().mean(dim=0).cpu()
