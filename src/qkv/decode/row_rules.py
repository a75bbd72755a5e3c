"""The rules of the rows of a running batch: a value for each row, rebuilt when rows come or go.

Shapes: B requests, K open hypotheses of each, V vocabulary. A row's result does not depend on the
rules of its neighbours: where a rule is off, it changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.batching import on_device
from qkv.decode import noise, rules
from qkv.decode.request import Request
from qkv.decode.sizes import power_of_two

NO_TOKEN = -1

History = Sequence[Sequence[Sequence[int]]]
"""Tokens of the prompt and the output so far, of each of the K hypotheses of each request."""


@dataclass
class RowRules:
    """Rules that forbid tokens or change their probabilities; None where no row has one."""

    limits: Tensor  # (B,) int64: most tokens of an output
    ends: Tensor  # (B, E) int64: tokens that end an output, filled up with NO_TOKEN
    suppressed: Tensor | None  # (B, N) int64: tokens never generated; NO_TOKEN: this row has none
    n_grams: tuple[int, ...]  # the sizes in use below
    no_repeat: Tensor | None  # (B,) int64: size of the n-grams that may not come again
    past: Tensor | None  # (B, K, L) int64: the newest tokens on the right, filled up with NO_TOKEN
    penalty: Tensor | None  # (B,) float32: of tokens that were seen
    seen: Tensor | None  # (B, K, V) bool
    least: Tensor | None  # (B,) int64: tokens before which no end may come
    end_columns: Tensor | None  # (B, V) bool: the ends in the vocabulary
    forced: Tensor | None  # (B,) bool: whether the last token that fits must be an end

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        history: Callable[[], History],
        vocab_size: int,
        device: torch.device,
    ) -> RowRules:
        """Collect the rules of these rows; `history` is asked only if a rule needs it."""
        settings = [request.rules for request in requests]
        sizes = [x.no_repeat for x in settings]
        penalties = [float(x.repetition_penalty) for x in settings]
        least = [x.min_length for x in settings]
        forced = [x.force_end for x in settings]

        def column(values: Sequence[object], used: bool = True) -> Tensor | None:
            return on_device(values, device) if used else None

        def marks(tokens: Sequence[Sequence[int]]) -> Tensor:
            return _columns(tokens, vocab_size, device)

        limits, ends = column([x.limit for x in requests]), column(_filled_up(requests))
        assert limits is not None and ends is not None
        penalised, counted = any(x != 1.0 for x in penalties), any(sizes)
        room = max(len(request.prompt) + request.limit for request in requests)
        return cls(
            limits=limits,
            ends=ends,
            suppressed=column(_suppressed(requests), any(x.suppress for x in requests)),
            n_grams=tuple(sorted({*sizes} - {0})),
            no_repeat=column(sizes, counted),
            past=column(_past(history(), power_of_two(room))) if counted else None,
            penalty=column(penalties, penalised),
            seen=torch.stack([marks(x) for x in history()]) if penalised else None,
            least=column(least, any(least)),
            end_columns=marks([x.ends for x in requests]) if any(least) else None,
            forced=column(forced, any(forced)),
        )

    def suppress(self, scores: Tensor) -> Tensor:
        """Mask, in place, the tokens that a request never generates, (B, K, V)."""
        if self.suppressed is None:
            return scores
        index = self.suppressed.clamp(min=0)[:, None].expand(-1, scores.shape[1], -1)
        kept = scores.gather(2, index)
        kept = kept.masked_fill(self.suppressed[:, None] >= 0, rules.HIDDEN)
        return scores.scatter_(2, index, kept)

    def penalise(self, scores: Tensor, otherwise: Tensor) -> Tensor:
        """Penalise repeated tokens of `scores`; rows without a penalty keep `otherwise`."""
        if self.penalty is None or self.seen is None:
            return otherwise
        penalty = self.penalty[:, None, None]
        penalised = self.suppress(rules.repetition(scores, self.seen, penalty))
        return torch.where(penalty == 1.0, otherwise, penalised)

    def restrict(self, scores: Tensor, step: Tensor) -> Tensor:
        """Apply the rules about n-grams and lengths, given the tokens so far, (B,)."""
        for n in self.n_grams:
            assert self.past is not None and self.no_repeat is not None
            banned = rules.no_repeat(scores, self.past, n)
            scores = torch.where((self.no_repeat == n)[:, None, None], banned, scores)
        if self.least is not None and self.end_columns is not None:
            early = (step < self.least)[:, None, None] & self.end_columns[:, None]
            scores = scores.masked_fill(early, rules.HIDDEN)
        if self.forced is not None:
            scores = self._force_end(scores, self.forced & (step + 1 >= self.limits))
        return scores

    def is_end(self, tokens: Tensor) -> Tensor:
        """Whether tokens (B, M) end an output of their request."""
        return (tokens[..., None] == self.ends[:, None]).any(dim=-1)

    def push(self, newest: Tensor, parents: Tensor | None = None) -> None:
        """Add the newest tokens (B, K) to the history in place, after reordering hypotheses."""
        if self.seen is not None:
            if parents is not None:
                self.seen.copy_(_follow(self.seen, parents))
            self.seen.scatter_(2, newest[..., None], True)
        if self.past is not None:
            past = self.past if parents is None else _follow(self.past, parents)
            self.past.copy_(torch.cat([past[..., 1:], newest[..., None]], dim=2))

    def _force_end(self, scores: Tensor, rows: Tensor) -> Tensor:
        ends, vocab_size = self.ends[:, 0], scores.shape[-1]
        index = ends.clamp(max=vocab_size - 1)[:, None, None].expand_as(scores[..., :1])
        only = torch.full_like(scores, rules.HIDDEN).scatter_(2, index, 0.0)
        return torch.where((rows & (ends < vocab_size))[:, None, None], only, scores)


@dataclass(frozen=True)
class Sampling:
    """The sampling settings of each row; columns are None where no row uses them."""

    drawn: Tensor  # (B,) bool: rows that draw their tokens at random; the others are greedy
    streams: Tensor  # (B,) int64: of random numbers
    temperature: Tensor | None  # each (B, 1)
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    most: int  # no top_k is larger

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device) -> Sampling | None:
        """Collect the settings; None where no row samples. Temperature 0 is greedy."""
        drawn = [x.rules.sample and x.rules.temperature > 0 for x in requests]
        if not any(drawn):
            return None

        def column(name: str, off: float) -> Tensor | None:
            pairs = zip(requests, drawn, strict=True)
            values = [getattr(x.rules, name) if is_drawn else off for x, is_drawn in pairs]
            if all(value == off for value in values):
                return None
            return on_device(values, device)[:, None]

        streams = [noise.stream(x.rules.seed, x.id, x.draw) for x in requests]
        return cls(
            on_device(drawn, device),
            on_device(streams, device),
            column("temperature", 1.0),
            column("top_k", 0),
            column("top_p", 1.0),
            column("min_p", 0.0),
            most=power_of_two(max(x.rules.top_k for x in requests)),
        )

    def draw(self, scores: Tensor, step: Tensor) -> Tensor:
        """Sample a token for each row from softmax(scores), (B, V), after the rules, (B,)."""
        random = noise.gumbel(self.streams, step, scores.shape[-1])
        return (self.restrict(scores) + random).argmax(dim=-1)

    def restrict(self, logits: Tensor) -> Tensor:
        """Apply the rules in `transformers`' order, (B, V)."""
        if self.temperature is not None:
            logits = rules.temperature(logits, self.temperature)
        if self.top_k is not None:
            logits = rules.top_k(logits, self.top_k, self.most)
        if self.top_p is not None:
            logits = rules.top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = rules.min_p(logits, self.min_p)
        return logits


def _filled_up(requests: Sequence[Request]) -> list[list[int]]:
    """The ends of each request in rows of one width."""
    width = max(len(request.ends) for request in requests)
    return [[*x.ends, *[NO_TOKEN] * (width - len(x.ends))] for x in requests]


def _suppressed(requests: Sequence[Request]) -> list[list[int]]:
    """Tokens that each request never generates; shorter rows repeat their first one."""
    width = max(len(request.suppress) for request in requests)
    rows = ([*(request.suppress or (NO_TOKEN,))] for request in requests)
    return [[*row, *row[:1] * (width - len(row))] for row in rows]


def _past(history: History, width: int) -> list[list[list[int]]]:
    return [
        [[NO_TOKEN] * (width - len(tokens)) + [*tokens] for tokens in hypotheses]
        for hypotheses in history
    ]


def _columns(tokens: Sequence[Sequence[int]], vocab_size: int, device: torch.device) -> Tensor:
    """Mark tokens in rows of the vocabulary, (N, V) bool; unknown ids are left out."""
    marks = torch.zeros((len(tokens), vocab_size), dtype=torch.bool)
    for row, ids in zip(marks, tokens, strict=True):
        row[[id for id in ids if id < vocab_size]] = True
    return on_device(marks, device)


def _follow(values: Tensor, parents: Tensor) -> Tensor:
    """Reorder hypotheses: (B, K, …) by parents (B, K)."""
    index = parents.view(*parents.shape, *[1] * (values.dim() - 2))
    return torch.take_along_dim(values, index, dim=1)
