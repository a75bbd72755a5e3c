"""`generate`: source tokens in, hypotheses out, by the search that the config asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode.beam import build_beam
from qkv.decode.graph import Graphs
from qkv.decode.greedy import build_greedy
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.loop import Batch, search_fixed, search_growing
from qkv.decode.state import Search, Task
from qkv.errors import UserError
from qkv.model import EncoderDecoder


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
    """Decode a batch of sources (B, S): for each, `config.n_best` hypotheses, best first.

    Every output begins with `prefix`. It ends with EOS, or after `max_lengths` generated tokens
    (EOS counted, prefix not), by default what `config.max_length` says. Tokens in `suppress` are
    never generated. Random draws depend on the seed and a sentence's id, by default its place in
    the batch. `fixed` keeps all shapes fixed, the default on a GPU; there, pass the same `graphs`
    with every batch so that steps once captured are used again.
    """
    if not len(source):
        return []
    lengths = [source.shape[1]] * len(source) if source_lengths is None else source_lengths.tolist()
    prompt = [model.config.bos_id, *prefix]
    limits = token_limits(model.config, config, lengths, len(prefix), max_lengths)
    task = Task(
        limits=torch.tensor(limits, device=source.device),
        ids=torch.tensor(list(range(len(source)) if ids is None else ids), device=source.device),
        seed=config.seed, newest=prompt[-1], room=max(limits),
    )  # fmt: skip
    search = build_search(config, model.config.eos_id, tuple(suppress))
    batch = build_batch(source, source_lengths, lengths, prompt)
    with evaluating(model):
        if source.is_cuda if fixed is None else fixed:
            found = search_fixed(model, search, batch, task, Graphs() if graphs is None else graphs)
        else:
            found = search_growing(model, search, batch, task)
    return [[replace(one, tokens=[*prefix, *one.tokens]) for one in each] for each in found]


def build_batch(
    source: Tensor, source_lengths: Tensor | None, lengths: list[int], prompt: list[int]
) -> Batch:
    """Leave out columns that are all padding, and lengths that say nothing."""
    longest = max(lengths)
    full = source_lengths is None or min(lengths) == longest
    return Batch(source[:, :longest], None if full else source_lengths, prompt)


def build_search(config: DecodeConfig, eos_id: int, suppress: tuple[int, ...]) -> Search[Any]:
    """Beam search, unless one beam or random draws are asked for."""
    if config.sample or config.beams == 1:
        return build_greedy(config, eos_id, suppress)
    return build_beam(config, eos_id, suppress)


def token_limits(
    model: ModelConfig,
    config: DecodeConfig,
    source_lengths: Sequence[int],
    prefix_length: int,
    max_lengths: Sequence[int] | int | None = None,
) -> list[int]:
    """How many tokens each sentence may generate, whatever batch it is in.

    By default twice its source tokens, those that were passed with EOS if it was, and 20 more; in
    any case no more than fit into the model together with BOS and the prefix.
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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
