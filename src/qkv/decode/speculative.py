"""Speculative decoding: a small model drafts, the large one checks many tokens in one pass.

The large model's own choice at each position counts, so the output is exactly that of greedy
search; a draft that guesses well only saves passes (Leviathan et al. 2022, without sampling).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import rules
from qkv.decode.captured.step import empty_cache
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.prompts import read
from qkv.decode.request import prompt_limits
from qkv.errors import UserError
from qkv.model import Cache, Decoder, evaluating

AHEAD = 5  # drafted tokens for each pass of the large model


@dataclass(frozen=True)
class Speculation:
    """The output, and the passes that it took."""

    hypothesis: Hypothesis
    passes: int  # of the large model, after it read the prompt
    drafted: int
    accepted: int


@torch.inference_mode()
def speculate(
    model: Decoder,
    draft: Decoder,
    prompt: Sequence[int],
    config: DecodeConfig,
    max_length: int | None = None,
    *,
    ahead: int = AHEAD,
    suppress: Sequence[int] = (),
    over: Callable[[list[int]], bool] | None = None,
) -> Speculation:
    """Run greedy search after one prompt, with a draft model of the same vocabulary.

    `over` is called after each pass with the tokens so far, without EOS; True stops.
    """
    _check(model, draft, config)
    (limit,) = prompt_limits(model.config, config, [prompt], max_length)
    with evaluating(model), evaluating(draft):
        writer = _Speculative(
            _CachedModel(model, suppress), _CachedModel(draft, suppress), list(prompt)
        )
        return writer.run(limit, ahead, over)


def _check(model: Decoder, draft: Decoder, config: DecodeConfig) -> None:
    if model.config.vocab_size != draft.config.vocab_size:
        raise UserError(
            f"The draft model knows {draft.config.vocab_size:,} tokens and the model "
            f"{model.config.vocab_size:,}; drafting needs one vocabulary, so train both with it."
        )
    ruled = config.repetition_penalty != 1.0 or config.no_repeat or config.min_length
    if config.sample or config.beams > 1 or ruled or config.force_end:
        raise UserError(
            "decode: a draft model works with plain greedy search only; set beams = 1, "
            "sample = false, repetition_penalty = 1, no_repeat = 0, min_length = 0 and "
            "force_end = false."
        )


class _CachedModel:
    """A model with its KV cache, which can be cut back."""

    def __init__(self, model: Decoder, suppress: Sequence[int]) -> None:
        self.model, self.suppress = model, suppress
        self.cache: Cache = empty_cache(model, 1, model.config.max_length)

    @property
    def n_read(self) -> int:
        assert isinstance(self.cache.length, int)
        return self.cache.length

    def forget_after(self, length: int) -> None:
        """Cut the cache back to this many tokens."""
        self.cache.length = min(self.n_read, length)

    def read(self, tokens: list[int]) -> Tensor:
        """Read tokens, and return log P of the token after each, (T, V)."""
        row = torch.tensor([tokens], device=self.cache.store.device)
        hidden = read(self.model, row, None, self.cache)
        logits: Tensor = self.model.output(hidden[0]).float()
        return rules.suppress(logits.log_softmax(dim=-1), self.suppress)


class _Speculative:
    """The tokens so far, and the two models."""

    def __init__(self, model: _CachedModel, draft: _CachedModel, tokens: list[int]) -> None:
        self.model, self.draft, self.tokens = model, draft, tokens
        self.log_probability, self.passes, self.drafted, self.accepted = 0.0, 0, 0, 0
        if len(tokens) > 1:
            model.read(tokens[:-1])

    def run(self, limit: int, ahead: int, over: Callable[[list[int]], bool] | None) -> Speculation:
        """Draft and check until EOS, the limit, or `over`."""
        begin = len(self.tokens)
        end, ends = begin + limit, self.model.model.config.ends
        finished = False
        while len(self.tokens) < end and not finished:
            # One token less than the limit allows: the large model adds one of its own.
            guesses = self._guess(min(ahead, end - len(self.tokens) - 1))
            for token in self._check(guesses):
                self.tokens.append(token)
                finished = token in ends
                if finished:
                    break
            if over and not finished and over(self.tokens[begin:]):
                break
        tokens = self.tokens[begin : len(self.tokens) - finished]
        score = self.log_probability / max(len(tokens) + finished, 1)
        hypothesis = Hypothesis(tokens, self.log_probability, score, finished)
        return Speculation(hypothesis, self.passes, self.drafted, self.accepted)

    def _guess(self, count: int) -> list[int]:
        """Let the draft model generate the next tokens."""
        count = min(count, self.draft.model.config.max_length - len(self.tokens))
        guesses: list[int] = []
        for _ in range(count):
            fresh = [*self.tokens, *guesses][self.draft.n_read :]
            guesses.append(int(self.draft.read(fresh)[-1].argmax()))
        self.drafted += len(guesses)
        return guesses

    def _check(self, guesses: list[int]) -> list[int]:
        """Return the large model's choices after the last token and after each right guess."""
        self.passes += 1
        best = self.model.read([self.tokens[-1], *guesses]).max(dim=-1)  # of (1 + guesses, V)
        chosen: list[int] = best.indices.tolist()
        agreed = 0
        while agreed < len(guesses) and guesses[agreed] == chosen[agreed]:
            agreed += 1
        ends = self.model.model.config.ends
        kept = chosen[: agreed + 1]
        last = next((index for index, token in enumerate(kept) if token in ends), agreed)
        kept = kept[: last + 1]
        self.accepted += min(agreed, len(kept))
        self.log_probability += float(best.values[: len(kept)].sum())
        for reader in (self.model, self.draft):
            reader.forget_after(len(self.tokens) + agreed)
        return kept
