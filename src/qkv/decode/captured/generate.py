"""Generating hypotheses: `generate` from sources, `complete` from prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode.captured.beam import build_beam
from qkv.decode.captured.graph import Graphs
from qkv.decode.captured.greedy import build_greedy
from qkv.decode.captured.loop import Watch, search_fixed, search_growing
from qkv.decode.captured.state import NONE, Search, Task
from qkv.decode.captured.step import PromptBatch
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.prompts import Generative
from qkv.decode.request import prompt_limits, token_limits
from qkv.model import Decoder, EncoderDecoder, evaluating


@torch.inference_mode()
def generate(
    model: EncoderDecoder,
    source: Tensor,
    source_lengths: Tensor | None,
    config: DecodeConfig,
    prefix: Sequence[int] = (),
    max_lengths: Sequence[int] | int | None = None,
    *,
    suppress: Sequence[int] = (),
    ids: Sequence[int] | None = None,
    fixed: bool | None = None,
    graphs: Graphs | None = None,
) -> list[list[Hypothesis]]:
    """Decode a batch of sources (B, S); the arguments are those of `closed_batch.generate`."""
    if not len(source):
        return []
    lengths = [source.shape[1]] * len(source) if source_lengths is None else source_lengths.tolist()
    prompts = [[model.config.bos_id, *prefix]] * len(source)
    limits = token_limits(model.config, config, lengths, len(prefix), max_lengths)
    longest = max(lengths)  # drop columns of padding alone, and lengths that are all equal
    batch = replace(
        build_batch(prompts, source.device),
        source=source[:, :longest],
        source_lengths=None if min(lengths) == longest else source_lengths,
    )
    task = build_task(model.config, config, prompts, limits, ids, source.device)
    n_given = int(list(prefix[:1]) == [model.config.start_id])
    search = build_search(config, model.config.ends, tuple(suppress), n_given)
    results = run_search(model, search, batch, task, fixed, graphs)
    return [
        [replace(best, tokens=[*prefix, *best.tokens]) for best in n_best] for n_best in results
    ]


@torch.inference_mode()
def complete(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    max_lengths: Sequence[int] | int | None = None,
    *,
    ends: Sequence[int] = (),
    suppress: Sequence[int] = (),
    ids: Sequence[int] | None = None,
    fixed: bool | None = None,
    graphs: Graphs | None = None,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """Continue prompts of any lengths (with BOS, if the model has one) in one batch.

    An output ends with any of `ends`, by default EOS. The other arguments are those of `generate`;
    `watch` may close outputs of a greedy search early.
    """
    if not prompts:
        return []
    limits = prompt_limits(model.config, config, prompts, max_lengths)
    device = next(model.parameters()).device
    task = build_task(model.config, config, prompts, limits, ids, device)
    search = build_search(config, tuple(ends) or model.config.ends, tuple(suppress))
    return run_search(model, search, build_batch(prompts, device), task, fixed, graphs, watch)


def run_search(
    model: Generative,
    search: Search[Any],
    batch: PromptBatch,
    task: Task,
    fixed: bool | None,
    graphs: Graphs | None,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """Run a search with fixed shapes or a growing cache, whichever suits the device."""
    with evaluating(model):
        if batch.prompts.is_cuda if fixed is None else fixed:
            graphs = Graphs() if graphs is None else graphs
            return search_fixed(model, search, batch, task, graphs, watch)
        return search_growing(model, search, batch, task, watch)


def build_batch(prompts: Sequence[Sequence[int]], device: torch.device) -> PromptBatch:
    """Left-pad prompts; the padding is masked, so its token does not matter."""
    longest = max(map(len, prompts))
    rows = torch.tensor([[0] * (longest - len(prompt)) + [*prompt] for prompt in prompts])
    first = torch.tensor([[longest - len(prompt)] for prompt in prompts])
    return PromptBatch(rows.to(device), first.to(device) if first.any() else None)


def build_task(
    model: ModelConfig,
    config: DecodeConfig,
    prompts: Sequence[Sequence[int]],
    limits: list[int],
    ids: Sequence[int] | None,
    device: torch.device,
) -> Task:
    """Build the search's input for a batch of prompts."""
    seen = None
    if config.repetition_penalty != 1.0:
        seen = torch.zeros(len(prompts), model.vocab_size, dtype=torch.bool)
        for row, prompt in zip(seen, prompts, strict=True):
            row[list(prompt)] = True
        seen = seen.to(device)
    past = None
    if config.no_repeat:
        width = max(map(len, prompts)) + max(limits)
        rows = [[NONE] * (width - len(prompt)) + [*prompt] for prompt in prompts]
        past = torch.tensor(rows, device=device)
    return Task(
        limits=torch.tensor(limits, device=device),
        ids=torch.tensor(list(range(len(prompts)) if ids is None else ids), device=device),
        seed=config.seed,
        newest=torch.tensor([prompt[-1] for prompt in prompts], device=device),
        room=max(limits),
        seen=seen,
        past=past,
    )


def build_search(
    config: DecodeConfig, ends: tuple[int, ...], suppress: tuple[int, ...], n_given: int = 0
) -> Search[Any]:
    """Build beam search, or greedy search for one beam or sampling."""
    if config.sample or config.beams == 1:
        return build_greedy(config, ends, suppress)
    return build_beam(config, ends, suppress, n_given)
