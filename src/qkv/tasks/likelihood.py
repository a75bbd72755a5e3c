"""How likely texts are: summed log-probabilities, and which of several options is likeliest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor

from qkv.decode.generate import evaluating
from qkv.errors import UserError
from qkv.model import Decoder, Layout
from qkv.tasks.continuations import BATCH_TOKENS, common, continuation_log_probabilities
from qkv.tasks.few_shot import Choice, Normalize
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.tasks.language import LanguageModel

LOGITS = 2**25  # numbers that stand in memory at one time: tokens times vocabulary


@dataclass(frozen=True)
class Likelihood:
    """What a model holds of a text."""

    log_probability: float  # in nats, of every token but the first (BOS, where there is one)
    n_tokens: int  # how many tokens that counts
    n_bytes: int  # of the text in UTF-8
    tokens: list[int]
    log_probabilities: list[float]  # one for each token that counts

    @property
    def perplexity(self) -> float:
        """e to the mean loss of a token."""
        return math.exp(-self.log_probability / max(self.n_tokens, 1))

    @property
    def bits_per_byte(self) -> float:
        """Comparable between vocabularies, as perplexity is not."""
        return -self.log_probability / math.log(2) / max(self.n_bytes, 1)


def likelihoods(
    model: Decoder, sequences: Sequence[list[int]], tokenizer: Tokenizer
) -> list[Likelihood]:
    """Score token sequences in batches; one longer than the context is read in windows."""
    windows = [
        (row, *window)
        for row, tokens in enumerate(sequences)
        for window in _windows(len(tokens), model.config.max_length)
    ]
    windows.sort(key=lambda window: window[2] - window[1], reverse=True)
    found = [[0.0] * max(len(tokens) - 1, 0) for tokens in sequences]
    budget = BATCH_TOKENS[next(model.parameters()).device.type]
    while windows:
        count = max(1, budget // max(windows[0][2] - windows[0][1], 1))
        batch, windows = windows[:count], windows[count:]
        gained = token_log_probabilities(model, [sequences[row][a:b] for row, a, b, _ in batch])
        for (row, start, _, fresh), values in zip(batch, gained, strict=True):
            for place in range(fresh, start + len(values)):
                found[row][place] = values[place - start]
    return [
        Likelihood(
            math.fsum(values), len(values), len(tokenizer.decode(tokens).encode()), tokens, values
        )
        for tokens, values in zip(sequences, found, strict=True)
    ]


def _windows(length: int, context: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, first place that is new): overlapping by half, so that all have some context."""
    start, fresh = 0, 0
    while True:
        end = min(start + context, length)
        yield start, end, fresh
        if end == length:
            return
        fresh, start = end - 1, end - context // 2


@torch.inference_mode()
def token_log_probabilities(model: Decoder, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """log P of each token but the first of every row, given those before it."""
    device = next(model.parameters()).device
    lengths = [len(row) for row in rows]
    table = torch.zeros((len(rows), max(lengths)), dtype=torch.int64)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = torch.tensor(row, dtype=torch.int64)
    table = table.to(device)
    with evaluating(model):
        hidden = model.hidden(table, Layout(lengths=torch.tensor(lengths, device=device)))
        gained = _of_labels(model, hidden[:, :-1], table[:, 1:]).tolist()
    return [values[: max(length - 1, 0)] for values, length in zip(gained, lengths, strict=True)]


def _of_labels(model: Decoder, hidden: Tensor, labels: Tensor) -> Tensor:
    """log P of labels (B, T), the logits made and dropped a few at a time."""
    flat, wanted = hidden.flatten(0, 1), labels.flatten()
    size = max(1, LOGITS // model.config.vocab_size)
    parts = [
        model.output(some).float().log_softmax(dim=-1).gather(1, label[:, None])[:, 0]
        for some, label in zip(flat.split(size), wanted.split(size), strict=True)
    ]
    return torch.cat(parts).view_as(labels) if parts else hidden.new_zeros(labels.shape)


def choices(
    speaker: LanguageModel,
    prompts: Sequence[str],
    options: Sequence[Sequence[str]],
    normalize: Normalize,
) -> list[Choice]:
    """Rank each prompt's options by the log-probability of what they add to the prompt."""
    _check(prompts, options, normalize)
    wholes = [
        [speaker.encode(prompt + option) for option in each]
        for prompt, each in zip(prompts, options, strict=True)
    ]
    # A prompt's last tokens may merge with an option's first: all options count from the same.
    begins = [
        max(1, min(common([speaker.encode(prompt), whole]) for whole in each))
        for prompt, each in zip(prompts, wholes, strict=True)
    ]
    likely = iter(_continued(speaker, wholes, begins))
    found = []
    for each in options:
        scores = []
        for option in each:
            gained = next(likely)
            units = {"none": 1, "tokens": len(gained), "bytes": len(option.encode())}[normalize]
            scores.append(math.fsum(gained) / max(units, 1))
        found.append(Choice(max(range(len(scores)), key=scores.__getitem__), scores))
    return found


def _continued(
    speaker: LanguageModel, wholes: Sequence[Sequence[list[int]]], begins: Sequence[int]
) -> list[list[float]]:
    """log P of each option's tokens; where one is too long for the context, all by windows."""
    sequences = [tokens for each in wholes for tokens in each]
    starts = [begin for each, begin in zip(wholes, begins, strict=True) for _ in each]
    if max(map(len, sequences), default=0) <= speaker.model.config.max_length:
        return continuation_log_probabilities(speaker.model, sequences, starts)
    scored = speaker.likelihoods(sequences)
    return [one.log_probabilities[start - 1 :] for one, start in zip(scored, starts, strict=True)]


def _check(prompts: Sequence[str], options: Sequence[Sequence[str]], normalize: str) -> None:
    if isinstance(prompts, str) or len(prompts) != len(options):
        raise UserError("Give a list of prompts and, for each of them, a list of options.")
    for number, each in enumerate(options, start=1):
        if isinstance(each, str) or not each:
            raise UserError(f"Prompt {number} has the options {each!r}; give a list of them.")
    if normalize not in get_args(Normalize):
        known = ", ".join(get_args(Normalize))
        raise UserError(f"normalize is {normalize!r}, but must be one of {known}.")
