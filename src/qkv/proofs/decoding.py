"""One token after another: with a cache as without, by either search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import Hypothesis, PromptBatch, prefill
from qkv.decode.beam import build_beam
from qkv.decode.generate import build_batch, build_search, build_task, run_search
from qkv.decode.step import Generative, empty_cache, read
from qkv.model import Cache, Decoder, EncoderDecoder
from qkv.proofs.passes import alone
from qkv.proofs.proof import Measured, difference, largest
from qkv.proofs.subject import Example, Subject

STEPS = 4  # tokens that are read one by one
WRITTEN = 8  # tokens that are written


def cache(subject: Subject) -> Measured:
    """Logits of the last tokens, read one by one after what a cache remembers, and all at once."""
    model, examples = generative(subject), subject.examples
    steps = min(STEPS, *(len(one.tokens) - 1 for one in examples))
    expected = torch.stack([alone(model, one)[-steps - 1 : -1] for one in examples])
    found = _step_by_step(model, examples, steps)
    return Measured(largest(difference([one], [expected]) for one in found), subject.limit)


@torch.inference_mode()
def _step_by_step(model: Generative, examples: Sequence[Example], steps: int) -> list[Tensor]:
    """Prompts of different lengths in one batch, then some tokens of each, (B, steps, V).

    Once with a cache that grows, and once with one of a fixed shape.
    """
    batch = _batch(model, examples, [one.tokens[:-steps] for one in examples])
    room = batch.prompts.shape[1] + steps
    memory, growing = prefill(model, batch, 1, room)
    found = []
    for cache in (_fixed(model, growing, room), growing):
        said = []
        for step in range(-steps - 1, -1):
            tokens = torch.tensor([[one.tokens[step]] for one in examples])
            hidden = read(model, tokens.to(batch.prompts.device), memory, cache)
            said.append(model.output(hidden[:, -1]))
        found.append(torch.stack(said, dim=1))
    return found


def _fixed(model: Generative, cache: Cache, room: int) -> Cache:
    """The same in a cache of one shape, as a GPU has it."""
    fixed = empty_cache(model, cache.store.shape[2], room, fixed=True)
    fixed.first = None if cache.first is None else cache.first.clone()
    fixed.fill(cache)
    return fixed


def generative(subject: Subject) -> Generative:
    """The model, which is known to write."""
    assert isinstance(subject.model, Decoder | EncoderDecoder)
    return subject.model


def _batch(
    model: Generative, examples: Sequence[Example], prompts: Sequence[Sequence[int]]
) -> PromptBatch:
    device, pad = next(model.parameters()).device, model.config.pad_id
    batch = build_batch(prompts, device)
    if isinstance(model, Decoder):
        return batch
    lengths = [len(one.source) for one in examples]
    rows = [[*one.source, *[pad] * (max(lengths) - len(one.source))] for one in examples]
    return replace(
        batch,
        source=torch.tensor(rows, device=device),
        source_lengths=torch.tensor(lengths, device=device),
    )


def one_beam(subject: Subject) -> Measured:
    """What greedy search writes, and what beam search writes with one beam."""
    model, examples = generative(subject), subject.examples
    longest = max(1, model.config.max_length - 1)  # with room for a token after it
    prompts = [one.tokens[: min(len(one.tokens) // 2 + 1, longest)] for one in examples]
    greedy, beam = (_written(model, examples, prompts, by_beam) for by_beam in (False, True))
    gaps = [
        gap(model, replace(one, tokens=prompt), first, second)
        for one, prompt, first, second in zip(examples, prompts, greedy, beam, strict=True)
    ]
    return Measured(largest(gaps), subject.limit)


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
    found = run_search(model, search, batch, task, None, None)
    return [written(one, model.config.eos_id) for one, *_ in found]


def written(one: Hypothesis, eos: int) -> list[int]:
    """An output with the EOS that ended it."""
    return [*one.tokens, *[eos] * one.finished]


@torch.inference_mode()
def gap(model: Generative, prompt: Example, one: list[int], other: list[int]) -> float:
    """How far apart the logits of the first tokens are in which two outputs differ; 0: nowhere.

    Where two tokens are equally likely but for rounding, either may be written.
    """
    if one == other:
        return 0.0
    place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if place is None:  # one is the beginning of the other
        return float("inf")
    tokens = [*prompt.tokens, *one[:place]]
    batch = _batch(model, [prompt], [tokens])
    memory, cache = prefill(model, batch, 1, len(tokens))
    logits = model.output(read(model, batch.prompts[:, -1:], memory, cache)[0, -1]).double()
    scale = logits.square().mean().sqrt().clamp(min=torch.finfo(logits.dtype).tiny)
    return float((logits[one[place]] - logits[other[place]]).abs() / scale)
