"""Beam search: K open hypotheses for each request, and the best K that have ended.

It chooses as `transformers` does: a step takes the 2·K best continuations; of these, the first K
may end, and the best K that do not end stay open. Length counts generated tokens, EOS included, and
also a forced token at the start of every output (BART's <s>).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batching import on_device
from qkv.cuda_graphs import assign, leaves
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.largest import NOTHING, log_softmax, top_scores
from qkv.decode.request import BeamStep, Event, Handle, Request, check_numbers
from qkv.decode.row_rules import History, RowRules
from qkv.decode.sizes import power_of_two

LEAST_ROOM = 64  # tokens; more are allocated in powers of two, each a kind of step of its own


@dataclass(frozen=True)
class Candidates:
    """Continuations of the open hypotheses, likeliest first; each (B, M), M at least 2·K."""

    scores: Tensor  # float32: log P
    parents: Tensor  # int64: the hypothesis that each continues
    tokens: Tensor  # int64: its new token


@dataclass
class BeamState:
    """What a search knows of each of B requests, with K beams and room for N tokens.

    A step reads it and changes it in place.
    """

    step: Tensor  # (B,) int64: tokens generated so far
    newest: Tensor  # (B, K) int64: the tokens that the model reads next
    tokens: Tensor  # (B, K, N) int64: the open hypotheses
    scores: Tensor  # (B, K) float32: their log P, largest first
    closed_tokens: Tensor  # (B, K, N) int64: finished hypotheses, best first, EOS included
    closed_lengths: Tensor  # (B, K) int64
    closed_scores: Tensor  # (B, K) float32: log P / length^penalty
    done: Tensor  # (B,) bool: the result can no longer change

    @classmethod
    def start(cls, requests: Sequence[Request], beams: int, device: torch.device) -> BeamState:
        """Start with one open hypothesis, the empty one; the first step fills the other beams."""
        shape = (len(requests), beams)
        count = torch.zeros(shape, dtype=torch.int64, device=device)
        nothing = torch.full(shape, NOTHING, device=device)
        scores = nothing.clone()
        scores[:, 0] = 0.0
        newest = on_device([request.prompt[-1] for request in requests], device)
        room = power_of_two(max(request.limit for request in requests), LEAST_ROOM)
        tokens = count.new_zeros((*shape, room))
        return cls(
            step=count[:, 0].clone(),
            newest=newest[:, None].repeat(1, beams),
            tokens=tokens,
            scores=scores,
            closed_tokens=tokens.clone(),
            closed_lengths=count,
            closed_scores=nothing,
            done=count[:, 0].bool(),
        )

    def select(self, rows: Sequence[int]) -> BeamState:
        """Keep these requests, in this order."""
        index = on_device(torch.tensor(list(rows), dtype=torch.int64), self.step.device)
        return BeamState(*(getattr(self, field.name)[index] for field in fields(self)))

    def followed_by(self, other: BeamState) -> BeamState:
        """Append the requests of another state."""
        room = max(self.tokens.shape[2], other.tokens.shape[2])
        pairs = ((getattr(self, x.name), getattr(other, x.name)) for x in fields(self))
        return BeamState(*(torch.cat([_widened(x, room) for x in pair]) for pair in pairs))


def _widened(tensor: Tensor, room: int) -> Tensor:
    return F.pad(tensor, (0, room - tensor.shape[2])) if tensor.dim() == 3 else tensor


@dataclass
class BeamRules:
    """The rules of each of B requests."""

    rows: RowRules
    n_given: Tensor  # (B,) int64: tokens before the output that count in its length
    penalty: Tensor  # (B,) float32: exponent of the length
    stops_early: Tensor  # (B,) bool: once K hypotheses have ended
    looks_ahead: Tensor  # (B,) bool: whether an open one may become better as it grows

    @classmethod
    def of(cls, requests: Sequence[Request], rows: RowRules) -> BeamRules:
        """Collect the rules of these rows."""

        def column(values: Sequence[object]) -> Tensor:
            return on_device(values, rows.limits.device)

        settings = [request.rules for request in requests]
        ahead = [x.early_stopping == "never" and x.length_penalty > 0 for x in settings]
        return cls(
            rows,
            n_given=column([x.n_given for x in requests]),
            penalty=column([float(x.length_penalty) for x in settings]),
            stops_early=column([x.early_stopping is True for x in settings]),
            looks_ahead=column(ahead),
        )

    def weight(self, length: Tensor) -> Tensor:
        """What a score is divided by at this length, (B,)."""
        return (length + self.n_given).float() ** self.penalty


@dataclass
class OpenBeams:
    """A running beam search of B requests, without their handles."""

    state: BeamState
    rules: BeamRules
    candidates: Candidates  # of the newest step
    parents: Tensor  # (B, K) int64: the hypotheses that it continued
    report: Tensor  # (2, B) float64: whether a request is done, and its best candidate's score

    @property
    def newest(self) -> Tensor:
        """The tokens that the model reads next, (B, K)."""
        return self.state.newest

    def advance(self, logits: Tensor) -> Tensor:
        """Extend the open hypotheses by one token, given logits (B, K, V); close those that end.

        Returns the parent of each hypothesis, (B, K).
        """
        state, rules = self.state, self.rules.rows
        beams = state.scores.shape[1]
        candidates = self.continuations(logits)
        last = state.step + 1 >= rules.limits
        ends = rules.is_end(candidates.tokens) | last[:, None]
        self._close(candidates, ends)
        scores, best = candidates.scores.masked_fill(ends, NOTHING).topk(beams)
        parents, newest = candidates.parents.gather(1, best), candidates.tokens.gather(1, best)
        rules.push(newest, parents)
        state.done |= last | self._settled(scores)
        # NaN sorts as the largest: it would be first.
        self.report.copy_(torch.stack([state.done, candidates.scores[:, 0]]))
        assign([*leaves(self.candidates), self.parents], [*leaves(candidates), parents])
        state.tokens.copy_(_written(state.tokens, parents, newest, state.step))
        state.scores.copy_(scores)
        state.newest.copy_(newest)
        state.step.add_(1)
        return parents

    def continuations(self, logits: Tensor) -> Candidates:
        """Find each request's best continuations: so many that at least K of them do not end.

        A hypothesis can end in as many ways as there are ends, so one more for each is enough.
        """
        rules, beams = self.rules.rows, self.state.scores.shape[1]
        gains = rules.suppress(log_softmax(logits))
        gains = rules.penalise(gains, gains)
        gains = rules.restrict(gains, self.state.step)
        vocab_size = gains.shape[-1]
        count = n_candidates(rules, beams, vocab_size)
        scores, index = top_scores(gains, self.state.scores, count)
        return Candidates(scores, index // vocab_size, index % vocab_size)

    def _close(self, candidates: Candidates, ends: Tensor) -> None:
        """Keep the best of the hypotheses that end now and those that ended before."""
        state, count = self.state, self.state.scores.shape[1]
        scores, parents, newest = (x[:, :count] for x in leaves(candidates))
        weight = self.rules.weight(state.step + 1)[:, None]
        open_ends = ends[:, :count] & ~state.done[:, None]  # steps may run on for a while
        scores = scores.masked_fill(~open_ends, NOTHING) / weight
        tokens = _written(state.tokens, parents, newest, state.step)
        lengths = (state.step + 1)[:, None].expand_as(parents)
        closed, best = torch.cat([state.closed_scores, scores], dim=1).topk(count)
        state.closed_scores.copy_(closed)
        lengths = torch.cat([state.closed_lengths, lengths], dim=1)
        state.closed_lengths.copy_(lengths.gather(1, best))
        tokens = torch.cat([state.closed_tokens, tokens], dim=1)
        state.closed_tokens.copy_(tokens.take_along_dim(best[..., None], dim=1))

    def _settled(self, scores: Tensor) -> Tensor:
        """Whether a request's result can no longer change, or the search may stop, (B,) bool."""
        state, rules = self.state, self.rules
        worst = state.closed_scores.amin(dim=-1)  # NOTHING unless K hypotheses have ended
        # The best score still possible, since log P is negative.
        length = torch.where(rules.looks_ahead, rules.rows.limits, state.step + 1)
        settled = ~(scores.amax(dim=-1) / rules.weight(length) > worst)
        return settled | (rules.stops_early & (worst != NOTHING))


class BeamSearch:
    """Requests with K open hypotheses each, all of which get their next token in one step."""

    def __init__(self, beams: int, vocab_size: int, device: torch.device) -> None:
        self.beams, self.vocab_size, self.device = beams, vocab_size, device
        self.handles: list[Handle] = []
        self.state: OpenBeams

    def change(self, kept: Sequence[int], joined: Sequence[Handle], n_rows: int = 0) -> None:
        """Keep these rows, in this order, and append new ones; more rows repeat the first one."""
        started = [handle.request for handle in joined]
        self.handles = [*(self.handles[row] for row in kept), *joined]
        if not self.handles:
            return
        parts = [self.state.state.select(kept)] if kept else []
        parts += [BeamState.start(started, self.beams, self.device)] if started else []
        state = parts[0] if len(parts) == 1 else parts[0].followed_by(parts[1])
        n_more = n_rows - len(self.handles)
        if n_more > 0:
            state = state.select([*range(len(self.handles)), *[0] * n_more])
        requests = [handle.request for handle in self.handles]
        requests += requests[:1] * n_more
        rules = RowRules.of(
            requests, lambda: _history(requests, state), self.vocab_size, self.device
        )
        count = n_candidates(rules, self.beams, self.vocab_size)
        index = torch.zeros((len(requests), count), dtype=torch.int64, device=self.device)
        self.state = OpenBeams(
            state,
            BeamRules.of(requests, rules),
            Candidates(index.float(), index.clone(), index),
            torch.zeros_like(state.newest),
            torch.zeros((2, len(requests)), dtype=torch.float64, device=self.device),
        )

    def collect(self, report: list[list[float]]) -> list[Event]:
        """Hand out the hypotheses of requests that are done, from a step's report."""
        done, best = report
        rows = [row for row, handle in enumerate(self.handles) if not handle.is_done]
        check_numbers([best[row] for row in rows])
        for row in rows:
            if self.handles[row].request.record:
                self.handles[row].steps.append(self._recorded(row))
        return self._finish([row for row in rows if done[row]])

    def _recorded(self, row: int) -> BeamStep:
        candidates, state = self.state.candidates, self.state.state
        closed = zip(
            state.closed_tokens[row].tolist(), state.closed_lengths[row].tolist(), strict=True
        )
        return BeamStep(
            list(zip(*(column[row].tolist() for column in leaves(candidates)), strict=True)),
            kept=list(
                zip(self.state.parents[row].tolist(), state.newest[row].tolist(), strict=True)
            ),
            ended=[tuple(tokens[:length]) for tokens, length in closed],
        )

    def _finish(self, rows: list[int]) -> list[Event]:
        if not rows:
            return []
        state = self.state.state.select(rows)
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
    last = tokens.shape[2] - 1  # rows that are done may go on beside the others for a while
    index = step.clamp(max=last)[:, None, None].expand(*newest.shape, 1)
    return tokens.scatter(2, index, newest[..., None])


def _history(requests: Sequence[Request], state: BeamState) -> History:
    rows = zip(requests, state.tokens.tolist(), state.step.tolist(), strict=True)
    return [
        [[*request.prompt, *tokens[:step]] for tokens in beams] for request, beams, step in rows
    ]


def n_candidates(rules: RowRules, beams: int, vocab_size: int) -> int:
    """Number of candidates: K for each way to end and K more."""
    return min((1 + rules.ends.shape[1]) * beams, beams * vocab_size)
