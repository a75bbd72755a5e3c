"""Beam search: K open hypotheses for each sentence, and the best K that have ended.

It chooses as `transformers` does: a step takes the 2·K best continuations; of these, the first K
may end, and the best K that do not end stay open. Length counts generated tokens, EOS included, and
also a forced token at the start of every output (BART's <s>).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import rules
from qkv.decode.captured.state import (
    State,
    Task,
    is_one_of,
    push,
    see,
    start_past,
    start_seen,
    take,
    write,
)
from qkv.decode.hypothesis import Hypothesis

NOTHING = float("-inf")  # the score of an empty slot


class Candidates(NamedTuple):
    """Continuations of the open hypotheses, likeliest first; each (B, 2K)."""

    scores: Tensor  # float32: log P
    parents: Tensor  # int64: the beam that each continues
    tokens: Tensor  # int64: its new token


class Closed(NamedTuple):
    """The best finished hypotheses, best first."""

    tokens: Tensor  # (B, K, N) int64: EOS included
    lengths: Tensor  # (B, K) int64
    scores: Tensor  # (B, K) float32: log P / length^penalty


@dataclass(frozen=True)
class BeamState(State):
    """State of beam search: B sentences, K beams."""

    tokens: Tensor  # (B, K, N) int64: the open hypotheses
    scores: Tensor  # (B, K) float32: their log P, largest first
    closed_tokens: Tensor  # (B, K, N) int64
    closed_lengths: Tensor  # (B, K) int64
    closed_scores: Tensor  # (B, K) float32
    seen: Tensor  # (B, K, V) bool: tokens of prompt and output; V is 0 without a repetition penalty
    past: Tensor  # (B, K, L) int64: prompt and output, newest last; L is 0 without no_repeat

    @property
    def closed(self) -> Closed:
        """The finished hypotheses."""
        return Closed(self.closed_tokens, self.closed_lengths, self.closed_scores)


@dataclass(frozen=True)
class Beam:
    """Beam search with its settings; each step takes a state and returns the next."""

    rows: int  # K
    n_best: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    ends: tuple[int, ...]  # EOS and other tokens that end an output
    suppress: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    no_repeat: int = 0
    min_length: int = 0
    force_end: bool = False
    n_given: int = 0  # tokens before the first step that count as generated

    def start(self, task: Task) -> BeamState:
        """Start with one open hypothesis, the empty one; the first step fills the other beams."""
        shape, device = (len(task.limits), self.rows), task.limits.device
        count = torch.zeros(shape, dtype=torch.int64, device=device)
        nothing = torch.full(shape, NOTHING, device=device)
        tokens = count.new_zeros((*shape, task.room))
        return BeamState(
            step=count.new_zeros(()),
            limits=task.limits,
            done=task.limits < 1,
            newest=task.newest[:, None].expand(shape),
            tokens=tokens,
            scores=nothing.index_fill(1, count.new_zeros(1), 0.0),
            closed_tokens=tokens.clone(),
            closed_lengths=count,
            closed_scores=nothing,
            seen=start_seen(task, self.rows),
            past=start_past(task, self.rows),
        )

    def step(self, state: BeamState, logits: Tensor) -> tuple[BeamState, Tensor]:
        """Extend the open hypotheses by one token, and close those that end."""
        candidates = self.continuations(state, logits)
        last = (state.step + 1 >= state.limits)[:, None]
        ends = is_one_of(candidates.tokens, self.ends) | last
        closed = self._close(state, candidates, ends)
        scores, best = candidates.scores.masked_fill(ends, NOTHING).topk(self.rows)
        parents, newest = take(candidates.parents, best), take(candidates.tokens, best)
        after = BeamState(
            step=state.step + 1,
            limits=state.limits,
            done=state.done | last[:, 0] | self._settled(state, scores, closed.scores),
            newest=newest,
            tokens=write(take(state.tokens, parents), state.step, newest),
            scores=scores,
            closed_tokens=closed.tokens,
            closed_lengths=closed.lengths,
            closed_scores=closed.scores,
            seen=see(take(state.seen, parents), newest),
            past=push(take(state.past, parents), newest),
        )
        first_rows = torch.arange(len(parents), device=parents.device)[:, None] * self.rows
        return after, (parents + first_rows).flatten()

    def finish(self, state: BeamState) -> list[list[Hypothesis]]:
        """Return the n best of each sentence; fewer if there are fewer sequences."""
        columns = [column[:, : self.n_best].tolist() for column in state.closed]
        return [
            [self._hypothesis(*row) for row in zip(*lists, strict=True) if row[2] != NOTHING]
            for lists in zip(*columns, strict=True)
        ]

    def continuations(self, state: BeamState, logits: Tensor) -> Candidates:
        """Find each sentence's best continuations: so many that at least K of them do not end.

        A beam can end in as many ways as there are ends, so one more for each beam is enough.
        """
        total = rules.suppress(logits.log_softmax(dim=-1), self.suppress)
        total = total.unflatten(0, state.scores.shape)
        if state.seen.shape[2]:
            total = rules.repetition(total, state.seen, self.repetition_penalty)
        if state.past.shape[2]:
            total = rules.no_repeat(total, state.past, self.no_repeat)
        if self.min_length:
            total = rules.hold_back(total, self.ends, state.step < self.min_length)
        if self.force_end:
            last = state.step + 1 >= state.limits
            total = rules.force(total, self.ends[0], last[:, None])
        total = total.add_(state.scores[..., None])
        vocab_size = total.shape[-1]
        flat = total.flatten(1)  # (B, K·V)
        scores, index = flat.topk(min((1 + len(self.ends)) * self.rows, flat.shape[1]))
        return Candidates(scores, index // vocab_size, index % vocab_size)

    def _close(self, state: BeamState, candidates: Candidates, ends: Tensor) -> Closed:
        """Keep the best of the hypotheses that end now and those that ended before."""
        scores, parents, newest = (x[:, : self.rows] for x in candidates)
        stays = ~ends[:, : self.rows] | state.done[:, None]
        scores = scores.masked_fill(stays, NOTHING) / self._weight(state.step + 1)
        tokens = write(take(state.tokens, parents), state.step, newest)
        lengths = (state.step + 1).expand_as(parents)
        scores, best = torch.cat([state.closed_scores, scores], dim=1).topk(self.rows)
        return Closed(
            take(torch.cat([state.closed_tokens, tokens], dim=1), best),
            take(torch.cat([state.closed_lengths, lengths], dim=1), best),
            scores,
        )

    def _settled(self, state: BeamState, scores: Tensor, closed_scores: Tensor) -> Tensor:
        """Whether a sentence's result can no longer change, or the search may stop, (B,) bool."""
        worst = closed_scores.amin(dim=-1)  # NOTHING unless K hypotheses have ended
        length = (state.step + 1).expand_as(worst)
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = state.limits  # the best score still possible: log P is negative
        settled = ~(scores.amax(dim=-1) / self._weight(length) > worst)
        return settled | (worst != NOTHING) if self.early_stopping is True else settled

    def _weight(self, length: Tensor) -> Tensor:
        return (length + self.n_given).float() ** self.length_penalty

    def _hypothesis(self, tokens: list[int], length: int, score: float) -> Hypothesis:
        finished = tokens[length - 1] in self.ends
        log_probability = score * (length + self.n_given) ** self.length_penalty
        return Hypothesis(tokens[: length - finished], log_probability, score, finished)


def build_beam(
    config: DecodeConfig, ends: tuple[int, ...], suppress: tuple[int, ...], n_given: int = 0
) -> Beam:
    """Build beam search from the config."""
    return Beam(
        config.beams,
        config.n_best,
        config.length_penalty,
        config.early_stopping,
        ends,
        suppress,
        config.repetition_penalty,
        config.no_repeat,
        config.min_length,
        config.force_end,
        n_given,
    )
