"""The rules of the rows of a running batch: a value for each row, rebuilt when rows come or go.

Shapes: B requests, K open hypotheses of each, V vocabulary. A row's result does not depend on the
rules of its neighbours: where a rule is off, it changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode import noise, rules
from qkv.decode.request import Request

NO_TOKEN = -1

History = Sequence[Sequence[Sequence[int]]]
"""Tokens of the prompt and the output so far, of each of the K hypotheses of each request."""


class RowRules:
    """Rules that forbid tokens or change their probabilities, for each request of a batch."""

    def __init__(
        self,
        requests: Sequence[Request],
        history: Callable[[], History],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self.vocab_size, self.device = vocab_size, device
        settings = [request.rules for request in requests]
        self.limits = self.column([request.limit for request in requests])  # (B,)
        width = max(len(request.ends) for request in requests)
        self.ends = self.column(
            [[*x.ends, *[NO_TOKEN] * (width - len(x.ends))] for x in requests]
        )  # (B, E)
        self._suppressed = [
            (list(rows), tokens)
            for tokens, rows in _grouped([request.suppress for request in requests]).items()
            if tokens
        ]
        self._sizes = {
            n: self.column([x.no_repeat == n for x in settings])
            for n in sorted({x.no_repeat for x in settings} - {0})
        }
        self._penalty = self._where_used([x.repetition_penalty for x in settings], off=1.0)
        self._least = self._where_used([x.min_length for x in settings], off=0)
        self._forced = self._where_used([x.force_end for x in settings], off=False)
        self._end_columns = None
        if self._least is not None:
            self._end_columns = self._columns([request.ends for request in requests])
        self.first_ends = self.column([request.ends[0] for request in requests])
        self._seen = self._seen_tokens(history()) if self._penalty is not None else None
        self._past = self._past_tokens(history()) if self._sizes else None

    def suppress(self, scores: Tensor) -> Tensor:
        """Mask, in place, the tokens that a request never generates, (B, K, V)."""
        for rows, tokens in self._suppressed:
            if len(rows) == len(scores):
                rules.suppress(scores, tokens)
            else:
                for token in tokens:
                    scores[rows, :, token] = rules.HIDDEN
        return scores

    def penalise(self, scores: Tensor, otherwise: Tensor) -> Tensor:
        """Penalise repeated tokens of `scores`; rows without a penalty keep `otherwise`."""
        if self._penalty is None or self._seen is None:
            return otherwise
        penalty = self._penalty[:, None, None]
        penalised = self.suppress(rules.repetition(scores, self._seen, penalty))
        return torch.where(penalty == 1.0, otherwise, penalised)

    def restrict(self, scores: Tensor, step: Tensor) -> Tensor:
        """Apply the rules about n-grams and lengths, given the tokens so far, (B,)."""
        for n, uses in self._sizes.items():
            assert self._past is not None
            banned = rules.no_repeat(scores, self._past, n)
            scores = torch.where(uses[:, None, None], banned, scores)
        if self._least is not None and self._end_columns is not None:
            early = (step < self._least)[:, None, None] & self._end_columns[:, None]
            scores = scores.masked_fill(early, rules.HIDDEN)
        if self._forced is not None:
            scores = self._force_end(scores, self._forced & (step + 1 >= self.limits))
        return scores

    def is_end(self, tokens: Tensor) -> Tensor:
        """Whether tokens (B, M) end an output of their request."""
        return (tokens[..., None] == self.ends[:, None]).any(dim=-1)

    def push(self, newest: Tensor, parents: Tensor | None = None) -> None:
        """Add the newest tokens (B, K) to the history, after reordering hypotheses."""
        if self._seen is not None:
            seen = self._seen if parents is None else _follow(self._seen, parents)
            self._seen = seen.scatter(2, newest[..., None], True)
        if self._past is not None:
            past = self._past if parents is None else _follow(self._past, parents)
            self._past = torch.cat([past, newest[..., None]], dim=2)

    def _force_end(self, scores: Tensor, rows: Tensor) -> Tensor:
        ends = self.first_ends
        only = torch.full_like(scores, rules.HIDDEN)
        known = ends < self.vocab_size
        only.scatter_(
            2, ends.clamp(max=self.vocab_size - 1)[:, None, None].expand_as(only[..., :1]), 0.0
        )
        return torch.where((rows & known)[:, None, None], only, scores)

    def column(self, values: Sequence[object]) -> Tensor:
        """A value for each request as a tensor, (B, …)."""
        return torch.tensor(values, device=self.device)

    def _where_used(self, values: Sequence[float], off: float) -> Tensor | None:
        return None if all(value == off for value in values) else self.column(values)

    def _columns(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Mark tokens in a row of the vocabulary, (B, V) bool; unknown ids are left out."""
        marks = torch.zeros((len(tokens), self.vocab_size), dtype=torch.bool)
        for row, ids in zip(marks, tokens, strict=True):
            row[[id for id in ids if id < self.vocab_size]] = True
        return marks.to(self.device)

    def _seen_tokens(self, history: History) -> Tensor:
        return torch.stack([self._columns(hypotheses) for hypotheses in history])

    def _past_tokens(self, history: History) -> Tensor:
        longest = max(len(tokens) for hypotheses in history for tokens in hypotheses)
        rows = [
            [[NO_TOKEN] * (longest - len(tokens)) + [*tokens] for tokens in hypotheses]
            for hypotheses in history
        ]
        return self.column(rows)


@dataclass(frozen=True)
class Sampling:
    """The sampling settings of the rows that draw their tokens at random, S of them."""

    rows: Tensor  # (S,) int64
    streams: Tensor  # (S,) int64: of random numbers
    temperature: Tensor | None  # each (S, 1); None: no row uses it
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device) -> Sampling | None:
        """Collect the settings; None where no row samples. Temperature 0 is greedy."""
        drawn = [
            (row, request)
            for row, request in enumerate(requests)
            if request.rules.sample and request.rules.temperature > 0
        ]
        if not drawn:
            return None

        def column(name: str, off: float) -> Tensor | None:
            values = [getattr(request.rules, name) for _, request in drawn]
            if all(value == off for value in values):
                return None
            return torch.tensor(values, device=device)[:, None]

        streams = [noise.stream(x.rules.seed, x.id, x.draw) for _, x in drawn]
        return cls(
            torch.tensor([row for row, _ in drawn], device=device),
            torch.tensor(streams, device=device),
            column("temperature", 1.0),
            column("top_k", 0),
            column("top_p", 1.0),
            column("min_p", 0.0),
        )

    def draw(self, scores: Tensor, step: Tensor) -> Tensor:
        """Sample a token for each of these rows from softmax(scores) after the rules, (S,)."""
        logits = scores[self.rows]
        if self.temperature is not None:
            logits = rules.temperature(logits, self.temperature)
        if self.top_k is not None:
            logits = rules.top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = rules.top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = rules.min_p(logits, self.min_p)
        random = noise.gumbel(self.streams, step[self.rows], logits.shape[-1])
        return (logits + random).argmax(dim=-1)


def _grouped(values: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, value in enumerate(values):
        rows.setdefault(value, []).append(row)
    return rows


def _follow(values: Tensor, parents: Tensor) -> Tensor:
    """Reorder hypotheses: (B, K, …) by parents (B, K)."""
    index = parents.view(*parents.shape, *[1] * (values.dim() - 2))
    return torch.take_along_dim(values, index, dim=1)
