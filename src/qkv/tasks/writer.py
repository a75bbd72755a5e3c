"""Token generation: what a language model's verbs have in common, below the level of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from qkv.config import DecodeConfig
from qkv.decode import Engine, Event, Graphs, Handle, Hypothesis, Remembered, Request, stream
from qkv.decode.captured.generate import complete as complete_captured
from qkv.decode.captured.greedy import GreedyState, close_outputs
from qkv.decode.closed_batch import join, run
from qkv.decode.request import USUAL_LENGTH, prompt_limits, suppressed
from qkv.decode.speculative import speculate
from qkv.model import Decoder
from qkv.tasks.texts import Progress
from qkv.text import TextStream, Tokenizer

CAPTURED_TOKENS = 131_072  # of prompts and room for what comes after, in one batch on a GPU


class Writer:
    """A decoder, with the vocabulary in which stop strings are spelt."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.engine = Engine(model)
        self.graphs = Graphs()

    @property
    def _on_gpu(self) -> bool:
        return next(self.model.parameters()).is_cuda

    def complete(
        self,
        prompts: Sequence[list[int]],
        ids: Sequence[int],
        config: DecodeConfig,
        ends: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """Complete each prompt, up to its limit or as far as the context reaches."""
        if self._on_gpu:
            return self._complete_captured(prompts, ids, config, ends, progress)
        limits = prompt_limits(self.model.config, config, prompts)
        rows = zip(prompts, limits, ids, strict=True)
        requests = [self._request(prompt, limit, config, ends, id) for prompt, limit, id in rows]
        handles = run(self.engine, requests, progress, self._is_over(config))
        return [join(of_prompt) for of_prompt in handles]

    def stream(
        self,
        prompt: list[int],
        config: DecodeConfig,
        ends: Sequence[int] = (),
        remembered: Remembered | None = None,
        id: int = 0,
    ) -> Iterator[int]:
        """Yield the tokens of `complete` for one prompt as they come; `id` names its draws."""
        (limit,) = prompt_limits(self.model.config, config, [prompt])
        if self._on_gpu:
            never = suppressed(config, self.model.config, ends)
            yield from stream(
                self.model,
                prompt,
                config,
                limit,
                ends=ends,
                suppress=never,
                id=id,
                graphs=self.graphs,
                remembered=remembered,
            )
            return
        remembered = remembered or Remembered()
        handle = self.engine.submit(self._request(prompt, limit, config, ends, id, keep=True))
        remembered.tokens = prompt[:-1]
        newest = prompt[-1]
        try:
            for event in self.engine.stream(handle):
                remembered.tokens.append(newest)  # the step that chose the next one has read it
                newest = event.token
                if newest not in handle.request.ends:
                    yield newest
        finally:
            remembered.n_read += handle.n_read

    def speculate(
        self, draft: Decoder, prompts: Sequence[list[int]], config: DecodeConfig
    ) -> list[list[Hypothesis]]:
        """Complete each prompt greedily with the help of a smaller model."""
        never = suppressed(config, self.model.config)
        return [
            [
                speculate(
                    self.model,
                    draft,
                    prompt,
                    config,
                    suppress=never,
                    over=lambda tokens: self._has_stop(tokens, config),
                ).hypothesis
            ]
            for prompt in prompts
        ]

    def _request(
        self,
        prompt: Sequence[int],
        limit: int,
        config: DecodeConfig,
        ends: Sequence[int],
        id: int,
        keep: bool = False,
    ) -> Request:
        return Request(
            tuple(prompt),
            limit,
            tuple(ends) or self.model.config.ends,
            config,
            suppress=suppressed(config, self.model.config, ends),
            id=id,
            keep=keep,
        )

    def _is_over(self, config: DecodeConfig) -> Callable[[Event], bool] | None:
        """Return a check for stop strings, which beam search has none of before its end."""
        if not config.stop:
            return None
        texts: dict[Handle, TextStream] = {}

        def is_over(event: Event) -> bool:
            request = event.handle.request
            if request.beams > 1:
                return False
            if event.handle not in texts:
                texts[event.handle] = TextStream(self.tokenizer, config.stop, request.prompt)
            texts[event.handle].push([event.token])
            return texts[event.handle].stopped

        return is_over

    # Steps that are captured as CUDA graphs

    def _complete_captured(
        self,
        prompts: Sequence[list[int]],
        ids: Sequence[int],
        config: DecodeConfig,
        ends: Sequence[int],
        progress: Progress | None,
    ) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in prompts]
        for rows in self._batches(prompts, config):
            results = complete_captured(
                self.model,
                [prompts[row] for row in rows],
                config,
                ids=[ids[row] for row in rows],
                ends=ends,
                suppress=suppressed(config, self.model.config, ends),
                graphs=self.graphs,
                watch=self._watch(config),
            )
            for row, hypotheses in zip(rows, results, strict=True):
                found[row] = hypotheses
            if progress:
                progress(len(rows))
        return found

    def _batches(self, prompts: Sequence[list[int]], config: DecodeConfig) -> Iterator[list[int]]:
        """Yield rows of similar length to complete together, within the budget."""
        rows = sorted(range(len(prompts)), key=lambda row: len(prompts[row]), reverse=True)
        rows_each = config.n_best if config.sample else config.beams
        budget = CAPTURED_TOKENS // rows_each
        while rows:
            wanted = config.max_length or USUAL_LENGTH
            count = max(1, budget // (len(prompts[rows[0]]) + wanted))
            yield rows[:count]
            del rows[:count]

    def _has_stop(self, tokens: list[int], config: DecodeConfig) -> bool:
        text = self.tokenizer.decode(tokens) if config.stop else ""
        return any(stop in text for stop in config.stop)

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
