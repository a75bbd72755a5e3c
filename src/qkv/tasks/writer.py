"""Tokens after tokens: what a language model's verbs have in common, below the level of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from qkv.config import DecodeConfig
from qkv.decode import Graphs, Hypothesis, Remembered, complete, stream
from qkv.decode.generate import USUAL_LENGTH, suppressed
from qkv.decode.greedy import GreedyState, close_outputs
from qkv.decode.speculative import speculate
from qkv.model import Decoder
from qkv.text import Tokenizer, cut_at_stop

BATCH_TOKENS = {"cpu": 4096, "cuda": 131_072}  # of prompts and room for what comes after, in all
TURN = 1 << 20  # each time that a text outgrows the context, its draws come from elsewhere


class Writer:
    """A decoder, with the vocabulary in which stop strings are spelt."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.graphs = Graphs()

    def batches(self, prompts: Sequence[list[int]], config: DecodeConfig) -> Iterator[list[int]]:
        """Rows to complete together: of similar length, within the budget."""
        rows = sorted(range(len(prompts)), key=lambda row: len(prompts[row]), reverse=True)
        rows_each = config.n_best if config.sample else config.beams
        device = next(self.model.parameters()).device.type
        budget = BATCH_TOKENS[device] // rows_each
        while rows:
            count = max(1, budget // (len(prompts[rows[0]]) + _wanted(config)))
            yield rows[:count]
            del rows[:count]

    def search(
        self,
        prompts: Sequence[list[int]],
        ids: Sequence[int],
        config: DecodeConfig,
        ends: Sequence[int] = (),
        limits: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """What comes after each prompt, as far as the context reaches."""
        return complete(
            self.model,
            prompts,
            config,
            limits,
            ids=ids,
            ends=ends,
            suppress=suppressed(config, self.model.config, ends),
            graphs=self.graphs,
            watch=self._watch(config),
        )

    def search_on(
        self,
        prompts: Sequence[list[int]],
        ids: Sequence[int],
        config: DecodeConfig,
        draft: Decoder | None = None,
    ) -> list[list[Hypothesis]]:
        """The same; but single outputs that fill the context go on from their newer half.

        A `draft` helps with greedy ones.
        """
        search = partial(self._speculate, draft) if draft else self.search
        found = search(prompts, ids, config)
        one_each = config.n_best == 1 and (config.sample or config.beams == 1)
        turn = 0
        while one_each and (cut := self._cut_short(prompts, found, config)):
            turn += 1
            longer = [self._newer_half([*prompts[at], *found[at][0].tokens]) for at in cut]
            left = [_wanted(config) - len(found[at][0].tokens) for at in cut]
            later = replace(config, min_length=max(0, config.min_length - _fewest(found, cut)))
            more = search(longer, [ids[at] + turn * TURN for at in cut], later, limits=left)
            for at, (one, *_) in zip(cut, more, strict=True):
                found[at] = [found[at][0].followed_by(one)]
        return found

    def _cut_short(
        self, prompts: Sequence[list[int]], found: list[list[Hypothesis]], config: DecodeConfig
    ) -> list[int]:
        """Which outputs have neither ended nor all the tokens that were asked for."""
        return [
            at
            for at, (one, *_) in enumerate(found)
            if not one.finished
            and len(one.tokens) < _wanted(config)
            and not cut_at_stop(self.tokenizer, one.tokens, config.stop, prompts[at])[2]
        ]

    def stream(
        self,
        prompt: list[int],
        config: DecodeConfig,
        ends: Sequence[int] = (),
        remembered: Remembered | None = None,
        id: int = 0,
    ) -> Iterator[int]:
        """The tokens of `search_on` for one prompt, as they come; `id` names its draws."""
        wanted, finished, turn = _wanted(config), False, 0
        never = suppressed(config, self.model.config, ends)
        while wanted and not finished:
            limit = min(wanted, self.model.config.max_length - len(prompt))
            tokens = stream(
                self.model,
                prompt,
                config,
                limit,
                ends=ends,
                suppress=never,
                id=id + turn * TURN,
                graphs=self.graphs,
                remembered=remembered,
            )
            fresh: list[int] = []
            for token in tokens:
                fresh.append(token)
                yield token
            wanted, finished, turn = wanted - len(fresh), len(fresh) < limit, turn + 1
            config = replace(config, min_length=max(0, config.min_length - len(fresh)))
            prompt = self._newer_half([*prompt, *fresh])

    def _speculate(
        self,
        draft: Decoder,
        prompts: Sequence[list[int]],
        ids: Sequence[int],
        config: DecodeConfig,
        limits: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """Greedy outputs that a smaller model helped with."""
        never = suppressed(config, self.model.config)
        given = limits or [_wanted(config)] * len(prompts)
        return [
            [
                speculate(
                    self.model,
                    draft,
                    prompt,
                    config,
                    limit,
                    suppress=never,
                    over=lambda tokens: self._has_stop(tokens, config),
                ).hypothesis
            ]
            for prompt, limit in zip(prompts, given, strict=True)
        ]

    def _has_stop(self, tokens: list[int], config: DecodeConfig) -> bool:
        text = self.tokenizer.decode(tokens) if config.stop else ""
        return any(stop in text for stop in config.stop)

    def _newer_half(self, tokens: list[int]) -> list[int]:
        return tokens[-max(1, self.model.config.max_length // 2) :]

    def _watch(self, config: DecodeConfig) -> Callable[[GreedyState], GreedyState] | None:
        """Notice now and then that a stop string has come, so that nobody works on for nothing."""
        if not config.stop or (config.beams > 1 and not config.sample):
            return None

        def watch(state: GreedyState) -> GreedyState:
            tokens, lengths = state.tokens.flatten(0, 1).tolist(), state.lengths.flatten().tolist()
            ended = [
                self._has_stop(row[:length], config)
                for row, length in zip(tokens, lengths, strict=True)
            ]
            return close_outputs(state, torch.tensor(ended, device=state.open.device))

        return watch


def _fewest(found: list[list[Hypothesis]], cut: list[int]) -> int:
    """How many tokens even the shortest of these outputs has."""
    return min(len(found[at][0].tokens) for at in cut)


def _wanted(config: DecodeConfig) -> int:
    return config.max_length or USUAL_LENGTH
