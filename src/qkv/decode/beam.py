"""Beam search: K open hypotheses for each request, and the best K that have ended.

It chooses as `transformers` does: a step takes the 2·K best continuations; of these, the first K
may end, and the best K that do not end stay open. Length counts generated tokens, EOS included, and
also a forced token at the start of every output (BART's <s>).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.hypothesis import Hypothesis
from qkv.decode.request import Event, Handle, Request, check_numbers
from qkv.decode.row_rules import History, RowRules

NOTHING = float("-inf")  # the score of an empty place


class Candidates(NamedTuple):
    """Continuations of the open hypotheses, likeliest first; each (B, M), M at least 2·K."""

    scores: Tensor  # float32: log P
    parents: Tensor  # int64: the hypothesis that each continues
    tokens: Tensor  # int64: its new token


@dataclass
class BeamState:
    """What a search knows of each of B requests, with K beams and room for N tokens."""

    step: Tensor  # (B,) int64: tokens generated so far
    newest: Tensor  # (B, K) int64: the tokens that the model reads next
    tokens: Tensor  # (B, K, N) int64: the open hypotheses
    scores: Tensor  # (B, K) float32: their log P, largest first
    closed_tokens: Tensor  # (B, K, N) int64: finished hypotheses, best first, EOS included
    closed_lengths: Tensor  # (B, K) int64
    closed_scores: Tensor  # (B, K) float32: log P / length^penalty

    @classmethod
    def start(cls, requests: Sequence[Request], beams: int, device: torch.device) -> BeamState:
        """Start with one open hypothesis, the empty one; the first step fills the other beams."""
        shape = (len(requests), beams)
        count = torch.zeros(shape, dtype=torch.int64, device=device)
        nothing = torch.full(shape, NOTHING, device=device)
        scores = nothing.clone()
        scores[:, 0] = 0.0
        newest = torch.tensor([request.prompt[-1] for request in requests], device=device)
        tokens = count.new_zeros((*shape, max(request.limit for request in requests)))
        return cls(
            step=count[:, 0].clone(),
            newest=newest[:, None].repeat(1, beams),
            tokens=tokens,
            scores=scores,
            closed_tokens=tokens.clone(),
            closed_lengths=count,
            closed_scores=nothing,
        )

    def select(self, rows: Sequence[int]) -> BeamState:
        """Keep these requests, in this order."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.step.device)
        return BeamState(*(getattr(self, field.name)[index] for field in fields(self)))

    def followed_by(self, other: BeamState) -> BeamState:
        """Append the requests of another state."""
        room = max(self.tokens.shape[2], other.tokens.shape[2])
        pairs = ((getattr(self, x.name), getattr(other, x.name)) for x in fields(self))
        return BeamState(*(torch.cat([_widened(x, room) for x in pair]) for pair in pairs))


def _widened(tensor: Tensor, room: int) -> Tensor:
    return F.pad(tensor, (0, room - tensor.shape[2])) if tensor.dim() == 3 else tensor


class BeamSearch:
    """Requests with K open hypotheses each, all of which get their next token in one step."""

    def __init__(self, beams: int, vocab_size: int, device: torch.device) -> None:
        self.beams, self.vocab_size, self.device = beams, vocab_size, device
        self.handles: list[Handle] = []
        self.state: BeamState

    @property
    def newest(self) -> Tensor:
        """The tokens that the model reads next, (B, K)."""
        return self.state.newest

    def change(self, kept: Sequence[int], joined: Sequence[Handle]) -> None:
        """Keep these rows, in this order, and append new ones."""
        requests = [handle.request for handle in joined]
        started = BeamState.start(requests, self.beams, self.device) if requests else None
        if kept:
            stayed = self.state.select(kept)
            self.state = stayed.followed_by(started) if started else stayed
        elif started:
            self.state = started
        self.handles = [*(self.handles[row] for row in kept), *joined]
        if self.handles:
            self._set_rules()

    def _set_rules(self) -> None:
        requests = [handle.request for handle in self.handles]
        self.rules = RowRules(requests, self._history, self.vocab_size, self.device)
        column = self.rules.column
        self.n_given = column([x.n_given for x in requests])
        self.penalty = column([float(x.rules.length_penalty) for x in requests])
        self.stops_early = column([x.rules.early_stopping is True for x in requests])
        self.looks_ahead = column(
            [x.rules.early_stopping == "never" and x.rules.length_penalty > 0 for x in requests]
        )

    def _history(self) -> History:
        requests = (handle.request for handle in self.handles)
        rows = zip(requests, self.state.tokens.tolist(), self.state.step.tolist(), strict=True)
        return [
            [[*request.prompt, *tokens[:step]] for tokens in beams] for request, beams, step in rows
        ]

    def step(self, logits: Tensor) -> tuple[list[Event], Tensor]:
        """Extend the open hypotheses by one token, given logits (B, K, V); close those that end.

        Also returns the parent of each hypothesis, (B, K).
        """
        state = self.state
        candidates = self.continuations(logits)
        last = state.step + 1 >= self.rules.limits
        ends = self.rules.is_end(candidates.tokens) | last[:, None]
        self._close(candidates, ends)
        scores, best = candidates.scores.masked_fill(ends, NOTHING).topk(self.beams)
        parents, newest = candidates.parents.gather(1, best), candidates.tokens.gather(1, best)
        self.rules.push(newest, parents)
        # NaN sorts as the largest: it would be first.
        check_numbers(candidates.scores[:, 0].tolist())
        done = last | self._settled(scores)
        state.tokens = _written(state.tokens, parents, newest, state.step)
        state.scores, state.newest, state.step = scores, newest, state.step + 1
        return self._finish(done), parents

    def continuations(self, logits: Tensor) -> Candidates:
        """Find each request's best continuations: so many that at least K of them do not end.

        A hypothesis can end in as many ways as there are ends, so one more for each is enough.
        """
        total = self.rules.suppress(logits.log_softmax(dim=-1))
        total = self.rules.penalise(total, total)
        total = self.rules.restrict(total, self.state.step)
        total = total.add_(self.state.scores[..., None])
        vocab_size = total.shape[-1]
        flat = total.flatten(1)  # (B, K·V)
        count = (1 + self.rules.ends.shape[1]) * self.beams
        scores, index = flat.topk(min(count, flat.shape[1]))
        return Candidates(scores, index // vocab_size, index % vocab_size)

    def _close(self, candidates: Candidates, ends: Tensor) -> None:
        """Keep the best of the hypotheses that end now and those that ended before."""
        state, count = self.state, self.beams
        scores, parents, newest = (x[:, :count] for x in candidates)
        weight = self._weight(state.step + 1)[:, None]
        scores = scores.masked_fill(~ends[:, :count], NOTHING) / weight
        tokens = _written(state.tokens, parents, newest, state.step)
        lengths = (state.step + 1)[:, None].expand_as(parents)
        state.closed_scores, best = torch.cat([state.closed_scores, scores], dim=1).topk(count)
        lengths = torch.cat([state.closed_lengths, lengths], dim=1)
        state.closed_lengths = lengths.gather(1, best)
        tokens = torch.cat([state.closed_tokens, tokens], dim=1)
        state.closed_tokens = tokens.take_along_dim(best[..., None], dim=1)

    def _settled(self, scores: Tensor) -> Tensor:
        """Whether a request's result can no longer change, or the search may stop, (B,) bool."""
        worst = self.state.closed_scores.amin(dim=-1)  # NOTHING unless K hypotheses have ended
        # The best score still possible, since log P is negative.
        length = torch.where(self.looks_ahead, self.rules.limits, self.state.step + 1)
        settled = ~(scores.amax(dim=-1) / self._weight(length) > worst)
        return settled | (self.stops_early & (worst != NOTHING))

    def _weight(self, length: Tensor) -> Tensor:
        return (length + self.n_given).float() ** self.penalty

    def _finish(self, done: Tensor) -> list[Event]:
        """Hand out the hypotheses of requests that are done."""
        rows = [row for row, is_done in enumerate(done.tolist()) if is_done]
        if not rows:
            return []
        state = self.state.select(rows)
        columns = (state.closed_tokens, state.closed_lengths, state.closed_scores)
        lists = zip(*(column.tolist() for column in columns), strict=True)
        return [
            self._finished(self.handles[row], *closed)
            for row, closed in zip(rows, lists, strict=True)
        ]

    def _finished(
        self, handle: Handle, tokens: list[list[int]], lengths: list[int], scores: list[float]
    ) -> Event:
        request = handle.request
        hypotheses = [
            _hypothesis(request, row[:length], score)
            for row, length, score in zip(tokens, lengths, scores, strict=True)
            if score != NOTHING
        ]
        handle.hypotheses = hypotheses[: request.rules.n_best]
        ended = bool(hypotheses) and hypotheses[0].finished
        handle.reason = "end" if ended else "limit"
        log_probability = hypotheses[0].log_probability if hypotheses else NOTHING
        return Event(handle, tokens[0][lengths[0] - 1], log_probability)


def _hypothesis(request: Request, tokens: list[int], score: float) -> Hypothesis:
    finished = tokens[-1] in request.ends
    weight = (len(tokens) + request.n_given) ** request.rules.length_penalty
    return Hypothesis(tokens[: len(tokens) - finished], score * weight, score, finished)


def _written(tokens: Tensor, parents: Tensor, newest: Tensor, step: Tensor) -> Tensor:
    """Return the tokens of the parents, (B, K, N), with the newest (B, K) at index `step`."""
    tokens = tokens.take_along_dim(parents[..., None], dim=1)
    index = step[:, None, None].expand(*newest.shape, 1)
    return tokens.scatter(2, index, newest[..., None])
