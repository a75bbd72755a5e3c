"""Greedy search and sampling: one token after another, the likeliest or a random one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import noise, rules
from qkv.decode.captured.state import (
    State,
    Task,
    is_one_of,
    push,
    see,
    start_past,
    start_seen,
    write,
)
from qkv.decode.hypothesis import Hypothesis


class Choose(Protocol):
    """Chooses the next tokens from logits (B, K, V), with noise from streams (B, K)."""

    def __call__(self, logits: Tensor, streams: Tensor, step: Tensor) -> Tensor:
        """Return the chosen tokens, (B, K)."""


def likeliest(logits: Tensor, streams: Tensor, step: Tensor) -> Tensor:
    """Choose the token with the largest logit."""
    return logits.argmax(dim=-1)


@dataclass(frozen=True)
class Draw:
    """Samples a token under temperature, top-k, top-p and min-p."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __call__(self, logits: Tensor, streams: Tensor, step: Tensor) -> Tensor:
        """Sample from softmax(logits) after the rules, (B, K)."""
        logits = self.restrict(logits)
        return (logits + noise.gumbel(streams, step, logits.shape[-1])).argmax(dim=-1)

    def restrict(self, logits: Tensor) -> Tensor:
        """Apply the rules in `transformers`' order, skipping those that change nothing."""
        if self.temperature != 1.0:
            logits = rules.temperature(logits, self.temperature)
        if self.top_k:
            logits = rules.top_k(logits, self.top_k)
        if self.top_p < 1.0:
            logits = rules.top_p(logits, self.top_p)
        return rules.min_p(logits, self.min_p) if self.min_p else logits


@dataclass(frozen=True)
class GreedyState(State):
    """State of greedy search: B sentences, K independent outputs of each."""

    tokens: Tensor  # (B, K, N) int64: generated tokens, EOS included
    lengths: Tensor  # (B, K) int64: how many of them count
    log_probability: Tensor  # (B, K) float32: of those tokens, before any rules
    open: Tensor  # (B, K) bool: neither ended nor at the limit
    streams: Tensor  # (B, K) int64: random streams, one for each output
    seen: Tensor  # (B, K, V) bool: tokens of prompt and output; V is 0 without a repetition penalty
    past: Tensor  # (B, K, L) int64: prompt and output, newest last; L is 0 without no_repeat


@dataclass(frozen=True)
class Greedy:
    """Greedy search or sampling, by how it chooses."""

    choose: Choose
    rows: int
    length_penalty: float
    ends: tuple[int, ...]  # EOS and other tokens that end an output
    suppress: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    no_repeat: int = 0
    min_length: int = 0
    force_end: bool = False

    def start(self, task: Task) -> GreedyState:
        """Return the state before the first token."""
        shape, device = (len(task.limits), self.rows), task.limits.device
        count = torch.zeros(shape, dtype=torch.int64, device=device)
        done = task.limits < 1
        return GreedyState(
            step=count.new_zeros(()),
            limits=task.limits,
            done=done,
            newest=task.newest[:, None].expand(shape),
            tokens=count.new_zeros((*shape, task.room)),
            lengths=count,
            log_probability=count.float(),
            open=~done[:, None].expand(shape),
            streams=noise.streams(task.seed, task.ids, self.rows),
            seen=start_seen(task, self.rows),
            past=start_past(task, self.rows),
        )

    def step(self, state: GreedyState, logits: Tensor) -> tuple[GreedyState, None]:
        """Append one token to each open output."""
        logits = logits.unflatten(0, state.newest.shape)  # (B, K, V)
        choices = rules.suppress(logits.log_softmax(dim=-1), self.suppress)
        allowed = choices
        if state.seen.shape[2]:  # this rule takes logits before log_softmax
            allowed = rules.repetition(logits, state.seen, self.repetition_penalty)
            allowed = rules.suppress(allowed, self.suppress)
        if state.past.shape[2]:
            allowed = rules.no_repeat(allowed, state.past, self.no_repeat)
        if self.min_length:
            allowed = rules.hold_back(allowed, self.ends, state.step < self.min_length)
        more = state.step + 1 < state.limits
        if self.force_end:
            allowed = rules.force(allowed, self.ends[0], ~more[:, None])
        token = self.choose(allowed, state.streams, state.step)
        gain = choices.gather(-1, token[..., None])[..., 0]
        still_open = state.open & ~is_one_of(token, self.ends) & more[:, None]
        return GreedyState(
            step=state.step + 1,
            limits=state.limits,
            done=~still_open.any(dim=-1),
            newest=token,
            tokens=write(state.tokens, state.step, token),
            lengths=state.lengths + state.open,
            log_probability=state.log_probability + gain.where(state.open, 0.0),
            open=still_open,
            streams=state.streams,
            seen=see(state.seen, token),
            past=push(state.past, token),
        ), None

    def finish(self, state: GreedyState) -> list[list[Hypothesis]]:
        """Return each sentence's outputs, best first."""
        scores = state.log_probability / state.lengths.float() ** self.length_penalty
        order = scores.argsort(dim=-1, descending=True, stable=True).tolist()
        columns = [x.tolist() for x in (state.tokens, state.lengths, state.log_probability, scores)]
        return [
            [self._hypothesis(*(column[b][k] for column in columns)) for k in best]
            for b, best in enumerate(order)
        ]

    def _hypothesis(
        self, tokens: list[int], length: int, log_probability: float, score: float
    ) -> Hypothesis:
        finished = tokens[length - 1] in self.ends
        return Hypothesis(tokens[: length - finished], log_probability, score, finished)


def close_outputs(state: GreedyState, ended: Tensor) -> GreedyState:
    """End the outputs that are flagged, (B·K,) bool."""
    still_open = state.open & ~ended.view_as(state.open)
    return replace(state, open=still_open, done=~still_open.any(dim=-1))


def build_greedy(config: DecodeConfig, ends: tuple[int, ...], suppress: tuple[int, ...]) -> Greedy:
    """Build greedy search, or sampling if the config asks for it; temperature 0 is greedy."""
    choose: Choose = likeliest
    if config.sample and config.temperature > 0:
        choose = Draw(config.temperature, config.top_k, config.top_p, config.min_p)
    return Greedy(
        choose,
        config.n_best if config.sample else 1,
        config.length_penalty,
        ends,
        suppress,
        config.repetition_penalty,
        config.no_repeat,
        config.min_length,
        config.force_end,
    )
