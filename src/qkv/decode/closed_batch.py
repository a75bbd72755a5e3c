"""Generating hypotheses for a closed batch: `generate` from sources, `complete` from prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode.engine import Engine
from qkv.decode.hypothesis import Hypothesis
from qkv.decode.request import Event, Handle, Request, prompt_limits, token_limits
from qkv.model import Decoder, EncoderDecoder


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
    engine: Engine | None = None,
) -> list[list[Hypothesis]]:
    """Decode a batch of sources (B, S): for each, `config.n_best` hypotheses, best first.

    Every output begins with `prefix`. It ends with EOS, or after `max_lengths` generated tokens
    (EOS counted, prefix not), by default `config.max_length`. Tokens in `suppress` are never
    generated. Random draws depend on the seed and a sentence's id, by default its index in the
    batch. `fixed` keeps all shapes fixed, the default on a GPU; there, pass one `engine` with every
    batch, so that recorded steps are reused.
    """
    if not len(source):
        return []
    lengths = [source.shape[1]] * len(source) if source_lengths is None else source_lengths.tolist()
    limits = token_limits(model.config, config, lengths, len(prefix), max_lengths)
    rows = zip(source.tolist(), lengths, limits, ids or range(len(source)), strict=True)
    requests = [
        Request(
            prompt=(model.config.bos_id, *prefix),
            limit=limit,
            ends=model.config.ends,
            rules=config,
            source=tuple(tokens[:length]),
            suppress=tuple(suppress),
            id=id,
            n_given=int([*prefix[:1]] == [model.config.start_id]),
        )
        for tokens, length, limit, id in rows
    ]
    engine = engine or Engine(model, fixed=fixed)
    results = [join(handles) for handles in run(engine, requests)]
    return [
        [replace(best, tokens=[*prefix, *best.tokens]) for best in n_best] for n_best in results
    ]


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
    engine: Engine | None = None,
) -> list[list[Hypothesis]]:
    """Continue prompts of any lengths (with BOS, if the model has one) in one batch.

    An output ends with any of `ends`, by default EOS. The other arguments are those of `generate`.
    """
    if not prompts:
        return []
    limits = prompt_limits(model.config, config, prompts, max_lengths)
    requests = [
        Request(
            tuple(prompt), limit, tuple(ends) or model.config.ends, config, (), tuple(suppress), id
        )
        for prompt, limit, id in zip(prompts, limits, ids or range(len(prompts)), strict=True)
    ]
    engine = engine or Engine(model, fixed=fixed)
    return [join(handles) for handles in run(engine, requests)]


def run(
    engine: Engine,
    requests: Iterable[Request],
    progress: Callable[[int], None] | None = None,
    is_over: Callable[[Event], bool] | None = None,
) -> list[list[Handle]]:
    """Run requests to their ends: the handles of each, one for every text that it samples."""
    groups = [draws(request) for request in requests]
    handles = iter(engine.run((draw for group in groups for draw in group), progress, is_over))
    return [[next(handles) for _ in group] for group in groups]


def join(handles: Sequence[Handle]) -> list[Hypothesis]:
    """The hypotheses of one request, best first."""
    hypotheses = [hypothesis for handle in handles for hypothesis in handle.hypotheses]
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def draws(request: Request) -> list[Request]:
    """The requests that a request is run as: one for every text that it samples."""
    n_draws = request.rules.n_best if request.rules.sample else 1
    return [replace(request, draw=draw) for draw in range(n_draws)]
