"""Token generation: what a language model's verbs have in common, below the level of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from qkv.config import DecodeConfig
from qkv.decode import Graphs, Hypothesis, Remembered, complete, stream
from qkv.decode.captured.greedy import GreedyState, close_outputs
from qkv.decode.request import USUAL_LENGTH, suppressed
from qkv.decode.speculative import speculate
from qkv.model import Decoder
from qkv.text import Tokenizer, cut_at_stop

BATCH_TOKENS = {"cpu": 4096, "cuda": 131_072}  # of prompts and room for what comes after, in all
TURN = 1 << 20  # added to an id each time that a text outgrows the context, for other draws


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
        """Complete each prompt as far as the context reaches."""
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
        """Complete each prompt; a single output that fills the context goes on from its newer half.

        A `draft` helps with greedy ones.
        """
        search = partial(self._speculate, draft) if draft else self.search
        found = search(prompts, ids, config)
        single = config.n_best == 1 and (config.sample or config.beams == 1)
        turn = 0
        while single and (cut := self._cut_short(prompts, found, config)):
            turn += 1
            longer = [self._newer_half([*prompts[row], *found[row][0].tokens]) for row in cut]
            written = [len(found[row][0].tokens) for row in cut]
            left = [_wanted(config) - count for count in written]
            later = replace(config, min_length=max(0, config.min_length - min(written)))
            more = search(longer, [ids[row] + turn * TURN for row in cut], later, limits=left)
            for row, (best, *_) in zip(cut, more, strict=True):
                found[row] = [found[row][0].followed_by(best)]
        return found

    def _cut_short(
        self, prompts: Sequence[list[int]], found: list[list[Hypothesis]], config: DecodeConfig
    ) -> list[int]:
        """Rows whose output has neither ended nor all the tokens that were asked for."""
        return [
            row
            for row, (best, *_) in enumerate(found)
            if not best.finished
            and len(best.tokens) < _wanted(config)
            and not cut_at_stop(self.tokenizer, best.tokens, config.stop, prompts[row])[2]
        ]

    def stream(
        self,
        prompt: list[int],
        config: DecodeConfig,
        ends: Sequence[int] = (),
        remembered: Remembered | None = None,
        id: int = 0,
    ) -> Iterator[int]:
        """Yield the tokens of `search_on` for one prompt as they come; `id` names its draws."""
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
        """Complete each prompt greedily with the help of a smaller model."""
        never = suppressed(config, self.model.config)
        found = []
        for prompt, limit in zip(prompts, limits or [_wanted(config)] * len(prompts), strict=True):
            speculated = speculate(
                self.model,
                draft,
                prompt,
                config,
                limit,
                suppress=never,
                over=lambda tokens: self._has_stop(tokens, config),
            )
            found.append([speculated.hypothesis])
        return found

    def _has_stop(self, tokens: list[int], config: DecodeConfig) -> bool:
        text = self.tokenizer.decode(tokens) if config.stop else ""
        return any(stop in text for stop in config.stop)

    def _newer_half(self, tokens: list[int]) -> list[int]:
        return tokens[-max(1, self.model.config.max_length // 2) :]

    def _watch(self, config: DecodeConfig) -> Callable[[GreedyState], GreedyState] | None:
        """Return a check that closes rows in which a stop string has come."""
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


def _wanted(config: DecodeConfig) -> int:
    return config.max_length or USUAL_LENGTH
