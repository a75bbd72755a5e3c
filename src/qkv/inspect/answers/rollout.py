"""Attention rollout: attention maps multiplied through the layers.

It assumes that attended tokens are passed on unchanged and ignores values and feed-forward layers:
`attribution` is more reliable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.inspect.answers.answer import MapAnswer, Question, View, the_trace
from qkv.inspect.answers.lens import stack_of
from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.language import localized
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.trace import Trace
from qkv.model import EncoderDecoder

SINK = 0.8  # mean share of one token in all others, above which it is an attention sink


@dataclass(frozen=True)
class Rollout(MapAnswer):
    """Shares (T, S) of the tokens `columns` in the tokens `rows`."""

    shares: Tensor
    rows: list[str]
    columns: list[str]

    @property
    def sink(self) -> str | None:
        """The token at which most attention of nearly all others ends, if there is one."""
        others = self.shares[1:]  # a causal text's first token can see nothing but itself
        if len(others) < 2:
            return None
        means = others.mean(dim=0)
        column = int(means.argmax())
        return self.columns[column] if float(means[column]) > SINK else None

    def parts(self) -> list[HeatMap]:
        """One map; an attention sink is named."""
        title = localized("Attention multiplied through all layers")
        if self.sink is not None:
            about = (
                "; {token!r} is an attention sink: heads with nothing to do look at it, so its "
                "share says little"
            )
            title += localized(about, token=self.sink)
        return [HeatMap(self.shares, self.rows, self.columns, title, value="share")]


def rollout(trace: Trace, stack: str | None = None, row: int = 0) -> Tensor:
    """Multiply attention maps through the layers, half of each token staying in place.

    For an encoder-decoder: the shares of source tokens (S) in target tokens (T), or with `stack`
    the shares of that stack's own tokens.
    """
    if stack is not None or not isinstance(trace.model, EncoderDecoder):
        stack = stack_of(trace, stack)
        count = len(trace.tokens(SIDES[stack], row))
        return _within(_mean_weights(trace, (stack,), row), stack, count)
    n_source, n_target = len(trace.tokens("source", row)), len(trace.tokens("target", row))
    weights = _mean_weights(trace, ("encoder", "decoder"), row)
    memory, shares = _within(weights, "encoder", n_source), torch.zeros(n_target, n_source)
    for at, own in weights.items():
        if at.startswith("decoder.") and at.endswith("self_attention"):
            cross = weights[at.replace("self_attention", "cross_attention")]
            shares = _half_stays(own, n_target) @ shares
            shares = (shares + cross[:n_target, :n_source] @ memory) / 2
    return shares


def _within(weights: dict[str, Tensor], stack: str, count: int) -> Tensor:
    """Shares of a stack's own tokens in one another."""
    shares = torch.eye(count)
    for at, own in weights.items():
        if at.startswith(f"{stack}.") and at.endswith("self_attention"):
            shares = _half_stays(own, count) @ shares
    return shares


def _half_stays(weights: Tensor, count: int) -> Tensor:
    """(A + I) / 2: half attention, half the token itself."""
    return (weights[:count, :count] + torch.eye(count)) / 2


def _mean_weights(trace: Trace, stacks: Sequence[str], row: int) -> dict[str, Tensor]:
    """Mean weights of each attention's heads by its key, layer by layer."""
    return {
        key.removesuffix(".weights"): value[row].float().mean(dim=0).cpu()
        for key, value in trace.each([f"{stack}.*_attention.weights" for stack in stacks])
    }


def _answer(question: Question) -> Rollout:
    trace, tokens = the_trace(question), list(question.tokens.values())
    return Rollout(trace.rollout(), tokens[-1], tokens[0])


VIEW = View(
    "Attention rollout",
    "Attention maps multiplied through the layers, as if tokens were passed on unchanged; "
    "attribution is more reliable.",
    _answer,
)
