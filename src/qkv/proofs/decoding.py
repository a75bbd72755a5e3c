"""Proofs about writing token by token: with a KV cache as without, greedy as beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import Hypothesis, PromptBatch, prefill
from qkv.decode.captured.beam import build_beam
from qkv.decode.captured.generate import build_batch, build_search, build_task, run_search
from qkv.decode.captured.step import empty_cache
from qkv.decode.prompts import Generative, empty_store, read
from qkv.model import Cache, Decoder, EncoderDecoder, Memory, NewTokens
from qkv.proofs.model_under_test import Example, ModelUnderTest
from qkv.proofs.passes import alone
from qkv.proofs.proof import Measured, difference, largest

STEPS = 4  # tokens that are read one by one
WRITTEN = 8  # tokens that are written


def cache(tested: ModelUnderTest) -> Measured:
    """Logits of the last tokens, read one by one after what a cache remembers, and all at once."""
    model, examples = generative(tested), tested.examples
    steps = min(STEPS, *(len(example.tokens) - 1 for example in examples))
    expected = torch.stack([alone(model, example)[-steps - 1 : -1] for example in examples])
    logits = _step_by_step(model, examples, steps)
    return Measured(largest(difference([each], [expected]) for each in logits), tested.limit)


@torch.inference_mode()
def _step_by_step(model: Generative, examples: Sequence[Example], steps: int) -> list[Tensor]:
    """Prompts of different lengths in one batch, then some tokens of each, (B, steps, V).

    Once in rows that have a length each, as the engine has them, and once in one of a fixed shape,
    as steps are captured on a GPU.
    """
    batch = _batch(model, examples, [example.tokens[:-steps] for example in examples])
    room = batch.prompts.shape[1] + steps
    memory, growing = prefill(model, batch, 1, room)
    fixed = _fixed(model, growing, room)
    rows, lengths = _rows(model, examples, steps, memory)
    by_rows, by_fixed = [], []
    for step in range(steps):
        newest = [[example.tokens[step - steps - 1]] for example in examples]
        tokens = torch.tensor(newest, device=batch.prompts.device)
        new = NewTokens(rows, lengths + step, int(lengths.max()) + step + 1)
        by_rows.append(model.output(read(model, tokens, memory, new)[:, -1]))
        by_fixed.append(model.output(read(model, tokens, memory, fixed)[:, -1]))
    return [torch.stack(logits, dim=1) for logits in (by_rows, by_fixed)]


def _rows(
    model: Generative, examples: Sequence[Example], steps: int, memory: Memory | None
) -> tuple[Tensor, Tensor]:
    """Read all but the last tokens into rows from their first slot on; with their lengths, (B,)."""
    prompts = [example.tokens[: -steps - 1] for example in examples]
    longest = max(map(len, prompts))
    store = empty_store(model, len(prompts), longest + steps)
    padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
    tokens = torch.tensor(padded, dtype=torch.int64, device=store.device)
    if longest:
        read(model, tokens, memory, NewTokens(store, 0, longest))
    return store, torch.tensor(list(map(len, prompts)), device=store.device)


def _fixed(model: Generative, cache: Cache, room: int) -> Cache:
    """A copy of a cache in one of a fixed shape, as a GPU has it."""
    fixed = empty_cache(model, cache.store.shape[2], room, fixed=True)
    fixed.first = None if cache.first is None else cache.first.clone()
    fixed.fill(cache)
    return fixed


def generative(tested: ModelUnderTest) -> Generative:
    """The model as one that generates, which the row's condition makes sure of."""
    assert isinstance(tested.model, Decoder | EncoderDecoder)
    return tested.model


def _batch(
    model: Generative, examples: Sequence[Example], prompts: Sequence[Sequence[int]]
) -> PromptBatch:
    device, pad = next(model.parameters()).device, model.config.pad_id
    batch = build_batch(prompts, device)
    if isinstance(model, Decoder):
        return batch
    lengths = [len(example.source) for example in examples]
    rows = [
        [*example.source, *[pad] * (max(lengths) - len(example.source))] for example in examples
    ]
    return replace(
        batch,
        source=torch.tensor(rows, device=device),
        source_lengths=torch.tensor(lengths, device=device),
    )


def one_beam(tested: ModelUnderTest) -> Measured:
    """What greedy search writes, and what beam search writes with one beam."""
    model, examples = generative(tested), tested.examples
    longest = max(1, model.config.max_length - 1)  # with room for a token after it
    prompts = [example.tokens[: min(len(example.tokens) // 2 + 1, longest)] for example in examples]
    greedy, beam = (_written(model, examples, prompts, by_beam) for by_beam in (False, True))
    gaps = [
        gap(model, replace(example, tokens=prompt), first, second)
        for example, prompt, first, second in zip(examples, prompts, greedy, beam, strict=True)
    ]
    return Measured(largest(gaps), tested.limit)


@torch.inference_mode()
def _written(
    model: Generative, examples: Sequence[Example], prompts: Sequence[list[int]], by_beam: bool
) -> list[list[int]]:
    """The tokens after each prompt, EOS included where it came."""
    # A single beam that has ended is over; otherwise it would look for a longer and better one.
    config = DecodeConfig(beams=1, early_stopping=True)
    ends, batch = (model.config.eos_id,), _batch(model, examples, prompts)
    limits = [min(WRITTEN, model.config.max_length - len(prompt)) for prompt in prompts]
    task = build_task(model.config, config, prompts, limits, None, batch.prompts.device)
    search = build_beam(config, ends, ()) if by_beam else build_search(config, ends, ())
    outputs = run_search(model, search, batch, task, None, None)
    return [written(best, model.config.eos_id) for best, *_ in outputs]


def written(output: Hypothesis, eos: int) -> list[int]:
    """The tokens of an output with the EOS that ended it."""
    return [*output.tokens, *[eos] * output.finished]


@torch.inference_mode()
def gap(model: Generative, prompt: Example, first: list[int], second: list[int]) -> float:
    """The difference of the logits of the first tokens in which two outputs differ, else 0.

    Where two tokens are equally likely but for rounding, either may be written.
    """
    if first == second:
        return 0.0
    pairs = enumerate(zip(first, second, strict=False))
    position = next((index for index, (ours, theirs) in pairs if ours != theirs), None)
    if position is None:  # one is the beginning of the other
        return float("inf")
    tokens = [*prompt.tokens, *first[:position]]
    batch = _batch(model, [prompt], [tokens])
    memory, cache = prefill(model, batch, 1, len(tokens))
    logits = model.output(read(model, batch.prompts[:, -1:], memory, cache)[0, -1]).double()
    scale = logits.square().mean().sqrt().clamp(min=torch.finfo(logits.dtype).tiny)
    return float((logits[first[position]] - logits[second[position]]).abs() / scale)
