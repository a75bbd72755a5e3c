"""Requests: what to generate from, by which rules, and what has come of it so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode.hypothesis import Hypothesis
from qkv.errors import UserError

USUAL_LENGTH = 256  # tokens after a prompt, by default
Reason = Literal["end", "limit", "cancelled"]


@dataclass(frozen=True)
class Request:
    """One output to generate: the n best hypotheses of a beam search, or one text."""

    prompt: tuple[int, ...]  # what the output continues; of an encoder-decoder, BOS and a prefix
    limit: int  # most tokens to generate, the end included
    ends: tuple[int, ...]  # tokens that end an output
    rules: DecodeConfig
    source: tuple[int, ...] = ()  # what an encoder-decoder reads, EOS included
    suppress: tuple[int, ...] = ()  # tokens never generated
    id: int = 0  # decides random draws, together with the seed and the draw
    draw: int = 0
    n_given: int = 0  # tokens of the prompt that count as generated in a length penalty
    keep: bool = False  # keep what was read for later prompts that begin with the same tokens
    record: bool = False  # write down every step of a beam search
    n_top: int = 0  # likeliest tokens to report with each token; a beam search reports none

    @property
    def beams(self) -> int:
        """Hypotheses that are open at the same time; 1 is greedy search or sampling."""
        return 1 if self.rules.sample else self.rules.beams

    @property
    def slots(self) -> int:
        """Slots of the KV cache that the whole output may take."""
        return len(self.prompt) - 1 + self.beams * self.limit


@dataclass(frozen=True)
class Event:
    """One more token of a request; a beam search has one event, its last token."""

    handle: Handle
    token: int
    log_probability: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens, with log P; best first


@dataclass(frozen=True)
class BeamStep:
    """One step of a beam search: its candidates, and what became of them."""

    candidates: list[tuple[float, int, int]]  # log P, the hypothesis continued, the token
    kept: list[tuple[int, int]]  # of each open hypothesis: the one continued, and its token
    ended: list[tuple[int, ...]]  # tokens of the best hypotheses that have ended


@dataclass(eq=False)
class Handle:
    """A submitted request: its tokens as they come, and its hypotheses when it is done."""

    request: Request
    tokens: list[int] = field(default_factory=list)  # the end included
    log_probabilities: list[float] = field(default_factory=list)  # of the model, before any rules
    hypotheses: list[Hypothesis] = field(default_factory=list)  # best first
    reason: Reason | None = None  # why it is done; None: it is not
    n_read: int = 0  # prompt tokens that were read, without those whose keys were kept
    steps: list[BeamStep] = field(default_factory=list)  # of a request to record
    is_kept: bool = False  # whether its keys were kept for later prompts
    error: BaseException | None = None  # why it was given up
    events: deque[Event] = field(default_factory=deque)  # that nobody has taken yet

    @property
    def is_done(self) -> bool:
        """Whether no further token will come."""
        return self.reason is not None

    def finish(self, reason: Reason) -> None:
        """Close a greedy search or a sampled text with what has come."""
        self.reason = reason
        finished = reason == "end"
        log_probability = math.fsum(self.log_probabilities)
        length = max(len(self.tokens), 1)
        score = log_probability / length**self.request.rules.length_penalty
        tokens = self.tokens[: len(self.tokens) - finished]
        log_probabilities = tuple(self.log_probabilities)
        self.hypotheses = [Hypothesis(tokens, log_probability, score, finished, log_probabilities)]


def check_numbers(log_probabilities: Sequence[float]) -> None:
    """Refuse logits that are not numbers, of which any choice would be garbage."""
    if any(map(math.isnan, log_probabilities)):
        raise UserError(
            "The model's logits are not numbers (NaN): its weights are damaged, or too large for "
            "their precision; check the file, or load it in float32."
        )


def suppressed(
    config: DecodeConfig, model: ModelConfig, ends: Sequence[int] = ()
) -> tuple[int, ...]:
    """List the tokens that are never generated: by default special tokens that end nothing."""
    if config.suppress == "special":
        special = {model.pad_id, model.bos_id} - {*model.ends, *ends}
        return tuple(sorted(token for token in special if token < model.vocab_size))
    for token in config.suppress:
        if not 0 <= token < model.vocab_size:
            raise UserError(
                f"decode: suppress names the token {token}, but those of the model go from 0 to "
                f"{model.vocab_size - 1}; leave it out."
            )
    return tuple(config.suppress)


def token_limits(
    model: ModelConfig,
    config: DecodeConfig,
    source_lengths: Sequence[int],
    prefix_length: int,
    max_lengths: Sequence[int] | int | None = None,
) -> list[int]:
    """Compute how many tokens each sentence may generate, independent of its batch.

    By default twice its source tokens (as given, with or without EOS) and 20 more; never more than
    fit into the model together with BOS and the prefix.
    """
    room = model.max_length - 1 - prefix_length
    if room < 1:
        raise UserError(
            f"decode: a prefix of {prefix_length} tokens leaves no room in a model whose "
            f"max_length is {model.max_length}; shorten the prefix."
        )
    if max(source_lengths) > model.max_length:
        raise UserError(
            f"decode: a source has {max(source_lengths)} tokens, but the model's max_length is "
            f"{model.max_length}; shorten or split it."
        )
    if max_lengths is None:
        max_lengths = config.max_length or [2 * length + 20 for length in source_lengths]
    if isinstance(max_lengths, int):
        max_lengths = [max_lengths] * len(source_lengths)
    if min(max_lengths) < 1:
        raise UserError(f"decode: a max_length of {min(max_lengths)} leaves nothing to generate.")
    return [min(limit, room) for limit in max_lengths]


def prompt_limits(
    model: ModelConfig,
    config: DecodeConfig,
    prompts: Sequence[Sequence[int]],
    max_lengths: Sequence[int] | int | None = None,
) -> list[int]:
    """Compute how many tokens may follow each prompt: the limit asked for, or what fits."""
    for number, prompt in enumerate(prompts, start=1):
        if not prompt:
            raise UserError(f"decode: prompt {number} is empty; give it a token, such as BOS.")
        if len(prompt) >= model.max_length:
            raise UserError(
                f"decode: prompt {number} has {len(prompt):,} tokens, but the model's context of "
                f"{model.max_length:,} must hold it and what comes after; shorten it."
            )
    if max_lengths is None:
        max_lengths = config.max_length or USUAL_LENGTH
    if isinstance(max_lengths, int):
        max_lengths = [max_lengths] * len(prompts)
    rooms = (model.max_length - len(prompt) for prompt in prompts)
    return [min(limit, room) for limit, room in zip(max_lengths, rooms, strict=True)]
