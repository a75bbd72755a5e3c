"""Greedy search and sampling: one token after another, the likeliest or a random one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.batching import on_device
from qkv.decode.largest import likeliest, log_softmax
from qkv.decode.request import Event, Handle, check_numbers
from qkv.decode.row_rules import History, RowRules, Sampling
from qkv.decode.rules import HIDDEN
from qkv.decode.sizes import power_of_two


@dataclass
class GreedyState:
    """What a step reads and changes in place, for B rows."""

    newest: Tensor  # (B, 1) int64: the tokens that the model reads next
    step: Tensor  # (B,) int64: tokens generated so far
    rules: RowRules
    sampling: Sampling | None
    n_top: int  # likeliest tokens to report
    report: Tensor  # (2 + 2 n_top, B) float64: the newest tokens, log P of each; the likeliest ones

    def advance(self, logits: Tensor) -> None:
        """Choose the next token of every row from logits (B, 1, V)."""
        raw = logits.clone() if self.rules.penalty is not None else logits
        log_probabilities = self.rules.suppress(log_softmax(logits))
        allowed = self.rules.penalise(raw, log_probabilities)
        allowed = self.rules.restrict(allowed, self.step)
        tokens = likeliest(allowed)  # (B, 1)
        if self.sampling is not None:
            random = self.sampling.draw(allowed[:, 0], self.step)
            tokens = torch.where(self.sampling.drawn, random, tokens[:, 0])[:, None]
        gains = log_probabilities.gather(-1, tokens[..., None])[..., 0]
        self.rules.push(tokens)
        self.newest.copy_(tokens)
        self.step.add_(1)
        columns = [tokens, gains]
        if self.n_top:
            likely = log_probabilities[:, 0].topk(self.n_top)
            columns += [likely.indices, likely.values]
        self.report.copy_(torch.cat(columns, dim=1).t())


class GreedySearch:
    """Requests with one open output each, all of which get their next token in one step."""

    beams = 1

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size, self.device = vocab_size, device
        self.handles: list[Handle] = []
        self.state: GreedyState

    def change(self, kept: Sequence[int], joined: Sequence[Handle], n_rows: int = 0) -> None:
        """Keep these rows, in this order, and append new ones; more rows repeat the first one."""
        self.handles = [*(self.handles[row] for row in kept), *joined]
        if not self.handles:
            return
        rows = [*self.handles, *self.handles[:1] * (n_rows - len(self.handles))]
        requests = [handle.request for handle in rows]
        newest = [(*x.request.prompt[-1:], *x.tokens[-1:])[-1:] for x in rows]
        n_top = max(request.n_top for request in requests)
        n_top = min(power_of_two(n_top), self.vocab_size) if n_top else 0
        self.state = GreedyState(
            newest=on_device(newest, self.device),
            step=on_device([len(handle.tokens) for handle in rows], self.device),
            rules=RowRules.of(requests, lambda: _history(rows), self.vocab_size, self.device),
            sampling=Sampling.of(requests, self.device),
            n_top=n_top,
            report=torch.zeros((2 + 2 * n_top, len(rows)), dtype=torch.float64, device=self.device),
        )

    def collect(self, report: list[list[float]]) -> list[Event]:
        """Hand out the tokens of a step from its report; rows that are done get none."""
        chosen, log_p, *likeliest = report
        n_top = len(likeliest) // 2
        rows = [row for row, handle in enumerate(self.handles) if not handle.is_done]
        check_numbers([log_p[row] for row in rows])
        events = []
        for row in rows:
            handle = self.handles[row]
            pairs = zip(likeliest[:n_top], likeliest[n_top:], strict=True)
            top = [(int(ids[row]), values[row]) for ids, values in pairs]
            possible = (pair for pair in top[: handle.request.n_top] if pair[1] > HIDDEN)
            events.append(self._add(handle, int(chosen[row]), log_p[row], tuple(possible)))
        return events

    def _add(
        self,
        handle: Handle,
        token: int,
        log_probability: float,
        top: tuple[tuple[int, float], ...],
    ) -> Event:
        handle.tokens.append(token)
        handle.log_probabilities.append(log_probability)
        if token in handle.request.ends:
            handle.finish("end")
        elif len(handle.tokens) == handle.request.limit:
            handle.finish("limit")
        return Event(handle, token, log_probability, top)


def _history(handles: Sequence[Handle]) -> History:
    return [[[*handle.request.prompt, *handle.tokens]] for handle in handles]
