"""Proofs about writing token by token: with a KV cache as without, greedy as beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qkv.batching import pad_rows
from qkv.config import DecodeConfig
from qkv.decode import Handle, Hypothesis, Request
from qkv.decode.beam import BeamSearch
from qkv.decode.lane import Lane
from qkv.decode.prompts import Generative, Prefill, empty_store, encode, read
from qkv.model import Decoder, EncoderDecoder, Memory, NewTokens
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

    Once in rows that show attention the slots that are filled, as on a CPU, and once in such that
    show it all slots, as steps of a fixed shape do on a GPU.
    """
    device = next(model.parameters()).device
    sources = [example.source for example in examples]
    memory = None if isinstance(model, Decoder) else encode(model, sources)
    stores = [_rows(model, examples, steps, memory) for _ in range(2)]
    lengths = [len(example.tokens) - steps - 1 for example in examples]
    start = torch.tensor(lengths, device=device)
    logits: list[list[Tensor]] = [[], []]
    for step in range(steps):
        newest = [[example.tokens[step - steps - 1]] for example in examples]
        tokens = torch.tensor(newest, device=device)
        widths = (max(lengths) + step + 1, stores[1].shape[4])
        for store, width, read_so_far in zip(stores, widths, logits, strict=True):
            hidden = read(model, tokens, memory, NewTokens(store, start + step, width))
            read_so_far.append(model.output(hidden[:, -1]))
    return [torch.stack(of_rows, dim=1) for of_rows in logits]


def _rows(
    model: Generative, examples: Sequence[Example], steps: int, memory: Memory | None
) -> Tensor:
    """Read all but the last tokens into rows of a KV cache, from their first slot on."""
    prompts = [example.tokens[: -steps - 1] for example in examples]
    longest = max(map(len, prompts))
    store = empty_store(model, len(prompts), longest + steps + 1)
    if longest:
        tokens = pad_rows(prompts).to(store.device)
        read(model, tokens, memory, NewTokens(store, 0, longest))
    return store


def generative(tested: ModelUnderTest) -> Generative:
    """The model as one that generates, which the row's condition makes sure of."""
    assert isinstance(tested.model, Decoder | EncoderDecoder)
    return tested.model


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
    rules = DecodeConfig(beams=1, early_stopping=True)
    eos, context = model.config.eos_id, model.config.max_length
    handles = [
        Handle(
            Request(
                tuple(prompt),
                min(WRITTEN, context - len(prompt)),
                (eos,),
                rules,
                tuple(example.source) if isinstance(model, EncoderDecoder) else (),
            )
        )
        for example, prompt in zip(examples, prompts, strict=True)
    ]
    lane = Lane(model, beams=1)
    if by_beam:
        lane.search = BeamSearch(1, model.config.vocab_size, lane.device)
    prefill = Prefill.begin(model, handles, None)
    while prefill.n_left:
        prefill.advance(model, prefill.n_left)
    lane.join(prefill)
    while not lane.is_idle:
        lane.step()
        lane.drop_done()
    return [written(handle.hypotheses[0], eos) for handle in handles]


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
    logits = alone(model, replace(prompt, tokens=[*prompt.tokens, *first[:position]]))[-1].double()
    scale = logits.square().mean().sqrt().clamp(min=torch.finfo(logits.dtype).tiny)
    return float((logits[first[position]] - logits[second[position]]).abs() / scale)
