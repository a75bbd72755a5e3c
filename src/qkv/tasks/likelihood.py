"""How likely texts are: summed log-probabilities, and which of several options is likeliest.

Few-shot prompts begin with the same examples, and the options of one question with the same
prompt: the first are read once into the KV cache, the second once as a row of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import torch
from torch import Tensor

from qkv.batching import BATCH_TOKENS, batches, pad_rows
from qkv.decode.prompts import LEAST_SHARED, common, empty_store
from qkv.errors import UserError
from qkv.model import Decoder, Layout, NewTokens, evaluating
from qkv.tasks.few_shot import Choice, Normalize
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.tasks.language import LanguageModel

LOGITS = 2**25  # numbers in memory at one time: tokens times vocabulary
CACHED = {"cpu": 2**28, "cuda": 2**33}  # numbers in the KV cache, for all rows of a batch

Inputs = tuple[int, ...]


@dataclass(frozen=True)
class Likelihood:
    """How likely a text is to a model."""

    log_probability: float  # in nats, of every token but the first (BOS, where there is one)
    n_tokens: int  # how many tokens that counts
    n_bytes: int  # of the text in UTF-8, without those of the first token
    tokens: list[int]
    log_probabilities: list[float]  # one for each token that counts

    @property
    def perplexity(self) -> float:
        """Exponential of the mean loss of a token."""
        return math.exp(-self.log_probability / max(self.n_tokens, 1))

    @property
    def bits_per_byte(self) -> float:
        """Loss of a byte in bits, which compares models whatever their vocabularies."""
        return -self.log_probability / math.log(2) / max(self.n_bytes, 1)


class RankedToken(NamedTuple):
    """How likely a token is after those before it, and which ones are likeliest there."""

    log_probability: float
    top: tuple[tuple[int, float], ...]  # tokens with log P, best first


def likelihoods(
    model: Decoder, sequences: Sequence[list[int]], tokenizer: Tokenizer
) -> list[Likelihood]:
    """Score token sequences in batches; one longer than the context is read in windows."""
    windows = [
        (row, *window)
        for row, tokens in enumerate(sequences)
        for window in _windows(len(tokens), model.config.max_length)
    ]
    found = [[0.0] * max(len(tokens) - 1, 0) for tokens in sequences]
    budget = BATCH_TOKENS[next(model.parameters()).device.type]
    for rows in batches([end - start for _, start, end, _ in windows], budget):
        batch = [windows[row] for row in rows]
        gained = token_log_probabilities(model, [sequences[row][a:b] for row, a, b, _ in batch])
        for (row, start, _, fresh), values in zip(batch, gained, strict=True):
            for position in range(fresh, start + len(values)):
                found[row][position] = values[position - start]
    return [
        Likelihood(
            math.fsum(values), len(values), _predicted_bytes(tokenizer, tokens), tokens, values
        )
        for tokens, values in zip(sequences, found, strict=True)
    ]


def _predicted_bytes(tokenizer: Tokenizer, tokens: Sequence[int]) -> int:
    """UTF-8 bytes of a text but for its first token, which is predicted from nothing."""
    whole = len(tokenizer.decode(tokens).encode())
    return max(whole - tokenizer.n_bytes(tokens[0]), 0) if tokens else whole


def _windows(length: int, context: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, first new position), overlapping by half, so that all have context."""
    start, fresh = 0, 0
    while True:
        end = min(start + context, length)
        yield start, end, fresh
        if end == length:
            return
        fresh, start = end - 1, end - context // 2


@torch.inference_mode()
def token_log_probabilities(
    model: Decoder, rows: Sequence[Sequence[int]], n_top: int = 0
) -> list[list[Any]]:
    """Log-probability of each token but the first of every row, given those before it.

    With `n_top`, a list for each token, as `_of_labels` has it.
    """
    device = next(model.parameters()).device
    lengths = [len(row) for row in rows]
    table = pad_rows(rows).to(device)
    with evaluating(model):
        hidden = model.hidden(table, Layout(lengths=torch.tensor(lengths, device=device)))
        gained = _of_labels(model, hidden[:, :-1], table[:, 1:], n_top).tolist()
    return [values[: max(length - 1, 0)] for values, length in zip(gained, lengths, strict=True)]


def ranked_log_probabilities(
    model: Decoder, sequences: Sequence[Sequence[int]], n_top: int
) -> list[list[RankedToken]]:
    """Score each token but the first of every sequence, beside the `n_top` likeliest ones.

    No sequence may be longer than the context.
    """
    found: list[list[RankedToken]] = [[] for _ in sequences]
    n_top = min(n_top, model.config.vocab_size)
    budget = BATCH_TOKENS[next(model.parameters()).device.type]
    for rows in batches(list(map(len, sequences)), budget):
        ranked = token_log_probabilities(model, [sequences[row] for row in rows], n_top)
        for row, values in zip(rows, ranked, strict=True):
            for log_probability, *likely in values:
                pairs = zip(map(int, likely[:n_top]), likely[n_top:], strict=True)
                found[row].append(RankedToken(log_probability, tuple(pairs)))
    return found


def _of_labels(model: Decoder, hidden: Tensor, labels: Tensor, n_top: int = 0) -> Tensor:
    """Log-probability of labels (B, T), computing the logits of a few at a time.

    With `n_top`, (B, T, 1 + 2 n_top): also the likeliest tokens, and log P of each.
    """
    size = max(1, LOGITS // model.config.vocab_size)
    chunks = zip(hidden.flatten(0, 1).split(size), labels.flatten().split(size), strict=True)
    parts = []
    for vectors, label in chunks:
        log_probabilities = model.output(vectors).float().log_softmax(dim=-1)
        columns = [log_probabilities.gather(1, label[:, None]).double()]
        if n_top:
            likely = log_probabilities.topk(n_top)
            columns += [likely.indices.double(), likely.values.double()]
        parts.append(torch.cat(columns, dim=1))
    shape = (*labels.shape, 1 + 2 * n_top)
    found = torch.cat(parts).view(shape) if parts else hidden.new_zeros(shape)
    return found if n_top else found[..., 0]


def choices(
    speaker: LanguageModel,
    prompts: Sequence[str],
    options: Sequence[Sequence[str]],
    normalize: Normalize,
) -> list[Choice]:
    """Rank each prompt's options by the log-probability of what they add to the prompt."""
    _check(prompts, options, normalize)
    sequences: list[list[int]] = []
    starts: list[int] = []
    for prompt, of_prompt in zip(prompts, options, strict=True):
        begin = speaker.encode(prompt)
        wholes = [speaker.encode(prompt + option) for option in of_prompt]
        # A prompt's last tokens may merge with an option's first: all options count from the same.
        sequences += wholes
        starts += [max(1, min(common([begin, whole]) for whole in wholes))] * len(wholes)
    gained = iter(_continued(speaker, sequences, starts))
    found = []
    for of_prompt in options:
        scores = []
        for option in of_prompt:
            values = next(gained)
            units = {"none": 1, "tokens": len(values), "bytes": len(option.encode())}[normalize]
            scores.append(math.fsum(values) / max(units, 1))
        found.append(Choice(max(range(len(scores)), key=scores.__getitem__), scores))
    return found


def _continued(
    speaker: LanguageModel, sequences: Sequence[list[int]], starts: Sequence[int]
) -> list[list[float]]:
    """Log-probabilities of each option's tokens; by windows if one does not fit the context."""
    if max(map(len, sequences), default=0) <= speaker.model.config.max_length:
        return continuation_log_probabilities(speaker.model, sequences, starts)
    scored = speaker.likelihoods(sequences)
    pairs = zip(scored, starts, strict=True)
    return [likelihood.log_probabilities[start - 1 :] for likelihood, start in pairs]


def _check(prompts: Sequence[str], options: Sequence[Sequence[str]], normalize: str) -> None:
    if isinstance(prompts, str) or len(prompts) != len(options):
        raise UserError("Give a list of prompts and, for each of them, a list of options.")
    for number, of_prompt in enumerate(options, start=1):
        if isinstance(of_prompt, str) or not of_prompt:
            raise UserError(f"Text {number} has the options {of_prompt!r}; give a list of them.")
    if normalize not in get_args(Normalize):
        known = ", ".join(get_args(Normalize))
        raise UserError(f"normalize is {normalize!r}, but must be one of {known}.")


@torch.inference_mode()
def continuation_log_probabilities(
    model: Decoder, sequences: Sequence[Sequence[int]], starts: Sequence[int]
) -> list[list[float]]:
    """Log-probabilities of each sequence's tokens from its start (at least 1), given those before.

    No sequence may be longer than the context.
    """
    if not sequences:
        return []
    first: dict[Inputs, int] = {}  # the smallest start of each distinct input
    for tokens, start in zip(sequences, starts, strict=True):
        inputs = tuple(tokens[:-1])
        first[inputs] = min(start, first.get(inputs, start))
    shared = min(common(list(first)), min(starts) - 1)
    shared = shared if shared >= LEAST_SHARED and len(first) > 1 else 0
    hidden: dict[Inputs, Tensor] = {}
    with evaluating(model):
        prefix = _prefill(model, min(first)[:shared]) if shared else None
        for rows in _batches(model, list(first), shared):
            for inputs, vectors in zip(rows, _hidden(model, rows, shared, prefix), strict=True):
                # Token t is predicted at position t - 1.
                hidden[inputs] = vectors[first[inputs] - 1 - shared : len(inputs) - shared].clone()
        return [
            _gained(model, hidden[tuple(tokens[:-1])], tokens, start)
            for tokens, start in zip(sequences, starts, strict=True)
        ]


def _prefill(model: Decoder, tokens: Inputs) -> Tensor:
    """Read the shared prefix into a KV cache of one row, (layers, 2, 1, G, L, D/H)."""
    store = empty_store(model, 1, len(tokens))
    new = NewTokens(store, 0, len(tokens))
    model.hidden(torch.tensor([tokens], device=store.device), cache=new)
    return store


def _batches(model: Decoder, rows: list[Inputs], shared: int) -> Iterator[list[Inputs]]:
    """Yield rows of similar length, the longest first, as many as there is memory for."""
    device, config = next(model.parameters()).device.type, model.config
    by_token = 2 * config.n_decoder_layers * config.kv_heads * config.d_head  # numbers

    def share(row: Inputs) -> float:
        """What a row takes of the tokens to read, or of the KV cache, whichever is more."""
        of_tokens = max(1, len(row) - shared) / BATCH_TOKENS[device]
        return max(of_tokens, by_token * len(row) / CACHED[device]) if shared else of_tokens

    for batch in batches(list(map(share, rows)), budget=1.0):
        yield [rows[index] for index in batch]


def _hidden(model: Decoder, rows: list[Inputs], shared: int, prefix: Tensor | None) -> Tensor:
    """Hidden states after the shared prefix, (B, T, D); no row attends to its padding."""
    # A row that the prefix is all of still needs a column.
    table = pad_rows([row[shared:] or (0,) for row in rows]).to(next(model.parameters()).device)
    if prefix is None:
        return model.hidden(table)
    n_slots = shared + table.shape[1]
    store = empty_store(model, len(rows), n_slots)
    store[..., :shared, :] = prefix
    return model.hidden(table, cache=NewTokens(store, shared, n_slots))


def _gained(model: Decoder, hidden: Tensor, tokens: Sequence[int], start: int) -> list[float]:
    labels = torch.tensor(tokens[start:], device=hidden.device)
    logits = model.output(hidden[len(hidden) - len(labels) :])
    found: list[float] = logits.float().log_softmax(-1).gather(1, labels[:, None])[:, 0].tolist()
    return found
