"""Token generation: the part that all methods of a language model share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from qkv.config import DecodeConfig
from qkv.decode import Engine, Event, Handle, Hypothesis, Request
from qkv.decode.closed_batch import join, run
from qkv.decode.request import prompt_limits, suppressed
from qkv.model import Decoder
from qkv.tasks.texts import Progress
from qkv.text import TextStream, Tokenizer


@dataclass
class Remembered:
    """The tokens that the model has read for a conversation or a stream."""

    tokens: list[int] = field(default_factory=list)  # of the newest prompt and what came after it
    n_read: int = 0  # so far, without those whose keys were kept


class Writer:
    """A decoder, with the vocabulary in which stop strings are spelt."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.engine = Engine(model)

    def complete(
        self,
        prompts: Sequence[list[int]],
        ids: Sequence[int],
        config: DecodeConfig,
        ends: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> list[list[Hypothesis]]:
        """Complete each prompt, up to its limit or as far as the context reaches."""
        limits = prompt_limits(self.model.config, config, prompts)
        rows = zip(prompts, limits, ids, strict=True)
        requests = [self.request(prompt, limit, config, ends, id) for prompt, limit, id in rows]
        handles = run(self.engine, requests, progress, self._is_over(config))
        return [join(of_prompt) for of_prompt in handles]

    def stream(
        self,
        prompt: list[int],
        config: DecodeConfig,
        ends: Sequence[int] = (),
        remembered: Remembered | None = None,
        id: int = 0,
        draw: int = 0,
    ) -> Iterator[int]:
        """Yield the tokens of `complete` for one prompt as they come.

        `id` and `draw` decide random draws.
        """
        (limit,) = prompt_limits(self.model.config, config, [prompt])
        remembered = remembered or Remembered()
        request = self.request(prompt, limit, config, ends, id)
        handle = self.engine.submit(replace(request, draw=draw, keep=True))
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

    def request(
        self, prompt: Sequence[int], limit: int, config: DecodeConfig, ends: Sequence[int], id: int
    ) -> Request:
        """The engine's request for what comes after a prompt."""
        return Request(
            tuple(prompt),
            limit,
            tuple(ends) or self.model.config.ends,
            config,
            suppress=suppressed(config, self.model.config, ends),
            id=id,
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
