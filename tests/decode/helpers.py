"""What the tests of decoding share: `transformers`' search, and plain ways to compare."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, MarianMTModel

from qkv.config import DecodeConfig
from qkv.decode import Engine, Hypothesis, Request, noise
from qkv.model import EncoderDecoder, Layout
from tests.parity.pairs import EOS

Found = list[list[Hypothesis]]


def transformers_search(
    marian: MarianMTModel, source: Tensor, lengths: Tensor, prefix: Sequence[int] = (), **settings
) -> list[tuple[list[int], float | None]]:
    """Plain search by `transformers`: tokens after BOS with EOS, and the score where it has one."""
    pad = marian.config.pad_token_id
    prompt = torch.tensor([[pad, *prefix]]).expand(len(source), -1)
    output = marian.generate(
        source,
        attention_mask=(torch.arange(source.shape[1]) < lengths[:, None]).long(),
        decoder_input_ids=prompt,
        generation_config=GenerationConfig(
            decoder_start_token_id=pad,
            pad_token_id=pad,
            eos_token_id=EOS,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        ),
    )
    scores = output.get("sequences_scores")
    scores = [None] * len(output.sequences) if scores is None else scores.tolist()
    rows = [cut(row[1:], EOS, pad) for row in output.sequences.tolist()]
    return list(zip(rows, scores, strict=True))


def cut(row: list[int], eos: int, pad: int) -> list[int]:
    """Without the padding that follows an output (the models never generate padding)."""
    if eos in row:
        return row[: row.index(eos) + 1]
    return row[: row.index(pad)] if pad in row else row


def with_eos(one: Hypothesis, eos: int = EOS) -> list[int]:
    return [*one.tokens, eos] if one.finished else one.tokens


def assert_same(found: Found, expected: Found, tolerance: float = 1e-4) -> None:
    """The same tokens in the same order, and the same scores up to rounding."""
    assert [[with_eos(one) for one in each] for each in found] == [
        [with_eos(one) for one in each] for each in expected
    ]
    for each, other in zip(found, expected, strict=True):
        for one, two in zip(each, other, strict=True):
            assert one.score == pytest.approx(two.score, abs=tolerance)
            assert one.log_probability == pytest.approx(two.log_probability, abs=20 * tolerance)


@torch.no_grad()
def teacher_forced(
    model: EncoderDecoder, source: Tensor, layout: Layout, targets: Tensor
) -> Tensor:
    """log P of each target token (B, T) after BOS and those before it, without any cache."""
    start = targets.new_full((len(targets), 1), model.config.bos_id)
    logits = model(source, torch.cat([start, targets[:, :-1]], dim=1), layout)
    return logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]


def stream(engine: Engine, prompt: Sequence[int], config: DecodeConfig, **more):
    """Yield the tokens after a prompt as they come, without the end."""
    limit = min(config.max_length or 256, engine.model.config.max_length - len(prompt))
    ends = tuple(more.pop("ends", engine.model.config.ends))
    request = Request(tuple(prompt), limit, ends, config, keep=True, **more)
    for event in engine.stream(engine.submit(request)):
        if event.token not in ends:
            yield event.token


def streams(seed: int, ids: Sequence[int], n_draws: int) -> Tensor:
    """The random streams of each draw of each sentence, (B, draws)."""
    return torch.tensor([[noise.stream(seed, id, draw) for draw in range(n_draws)] for id in ids])
