"""Greedy search and sampling: one token after another, the likeliest or a random one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.decode.request import Event, Handle, check_numbers
from qkv.decode.row_rules import History, RowRules, Sampling


def likeliest(scores: Tensor) -> Tensor:
    """Choose the token with the largest score, (…, V) to (…)."""
    return scores.argmax(dim=-1)


class GreedySearch:
    """Requests with one open output each, all of which get their next token in one step."""

    beams = 1

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size, self.device = vocab_size, device
        self.handles: list[Handle] = []
        self.newest: Tensor  # (B, 1) int64: the tokens that the model reads next

    def change(self, kept: Sequence[int], joined: Sequence[Handle]) -> None:
        """Keep these rows, in this order, and append new ones."""
        self.handles = [*(self.handles[row] for row in kept), *joined]
        if not self.handles:
            return
        requests = [handle.request for handle in self.handles]
        self.rules = RowRules(requests, self._history, self.vocab_size, self.device)
        self.sampling = Sampling.of(requests, self.device)
        newest = [(*x.request.prompt[-1:], *x.tokens[-1:])[-1:] for x in self.handles]
        self.newest = torch.tensor(newest, device=self.device)
        n_generated = [len(handle.tokens) for handle in self.handles]
        self.step_of_row = torch.tensor(n_generated, device=self.device)

    def _history(self) -> History:
        return [[[*handle.request.prompt, *handle.tokens]] for handle in self.handles]

    def step(self, logits: Tensor) -> tuple[list[Event], None]:
        """Choose the next token of every row from logits (B, 1, V)."""
        log_probabilities = self.rules.suppress(logits.log_softmax(dim=-1))
        allowed = self.rules.penalise(logits, log_probabilities)
        allowed = self.rules.restrict(allowed, self.step_of_row)
        tokens = likeliest(allowed)  # (B, 1)
        if self.sampling is not None:
            drawn = self.sampling.draw(allowed[:, 0], self.step_of_row)
            tokens[self.sampling.rows, 0] = drawn
        gains = log_probabilities.gather(-1, tokens[..., None])[..., 0]
        self.rules.push(tokens)
        self.newest, self.step_of_row = tokens, self.step_of_row + 1
        chosen, log_p = tokens[:, 0].tolist(), gains[:, 0].tolist()
        check_numbers(log_p)
        pairs = zip(self.handles, chosen, log_p, strict=True)
        return [self._add(*pair) for pair in pairs], None

    def _add(self, handle: Handle, token: int, log_probability: float) -> Event:
        handle.tokens.append(token)
        handle.log_probabilities.append(log_probability)
        if token in handle.request.ends:
            handle.finish("end")
        elif len(handle.tokens) == handle.request.limit:
            handle.finish("limit")
        return Event(handle, token, log_probability)
