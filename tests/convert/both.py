"""What both models say of the same inputs, and what both write."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qkv.config import DecodeConfig
from qkv.decode import complete, generate
from qkv.model import Decoder, Encoder, EncoderDecoder, Layout
from tests.convert.harness import OLDER_PEER, assert_close, texts, until

PROMPTS = [[5, 6, 7, 8, 9], [11], [12, 13, 14, 15, 16, 17]]


def said(
    head: str, ours: Encoder, theirs: PreTrainedModel, lengths: list[int], seed: int
) -> list[tuple[Tensor, Tensor]]:
    """What both say of the same texts, at real tokens, or of the same images."""
    if ours.config.patch_size:
        return said_of_images(head, ours, theirs, seed)
    tokens, mask, layout = texts(lengths, ours.config.vocab_size, seed)
    real = mask.bool()
    tokens = tokens.where(real, ours.config.pad_id)
    kinds = torch.randint(max(1, ours.config.n_segments), tokens.shape)
    given = {"token_type_ids": kinds} if ours.config.n_segments > 1 else {}
    other = theirs(input_ids=tokens, attention_mask=mask, **given)
    mine = ours(tokens, layout, kinds)
    if head == "none":
        found = [(mine[real], other.last_hidden_state[real])]
        if other.get("pooler_output") is not None and ours.config.pooler != "none":
            found.append((ours.pooler(mine, layout), other.pooler_output))
        return found
    if head == "pairs":
        vector = ours.pooler(ours.hidden(tokens, layout, kinds), layout)
        assert ours.pair_head is not None
        pairs = other.get("seq_relationship_logits", other.get("sop_logits"))
        return [
            (mine[real], other.prediction_logits[real]),
            (ours.pair_head(vector).flip(1), pairs),
        ]
    if head == "answer":
        both = torch.stack([other.start_logits, other.end_logits], -1)
        return [(mine[real], both[real])]
    return [(mine, other.logits) if head == "sequence" else (mine[real], other.logits[real])]


def said_of_images(
    head: str, ours: Encoder, theirs: PreTrainedModel, seed: int
) -> list[tuple[Tensor, Tensor]]:
    """What both say of the same images and their patches."""
    config, draw = ours.config, torch.Generator().manual_seed(seed)
    shape = (2, config.n_channels, config.image_size, config.image_size)
    pixels = torch.randn(shape, generator=draw, dtype=next(ours.parameters()).dtype)
    mine, other = ours(pixels), theirs(pixel_values=pixels)
    if head == "image":
        return [(mine, other.logits)]
    found = [(mine, other.last_hidden_state)]
    if config.pooler != "none":
        found.append((ours.pooler(mine, Layout()), other.pooler_output))
    return found


def assert_same_search(theirs: PreTrainedModel, ours: Decoder) -> None:
    """From prompts that we take together and they one by one: greedy, and one with beams."""
    for beams, n_prompts in ((1, 3), (4, 1)):
        found = complete(ours, PROMPTS, DecodeConfig(beams=beams, max_length=8))
        for prompt, (one, *_) in list(zip(PROMPTS, found, strict=True))[:n_prompts]:
            assert one.tokens == their_search(theirs, prompt, beams)


def their_search(model: PreTrainedModel, prompt: Sequence[int], beams: int) -> list[int]:
    """What comes before the end that their own config says, if it says any."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=8,
        num_beams=beams,
        do_sample=False,
    )
    return until(model.generation_config.eos_token_id, output[0].tolist()[len(prompt) :])


def teacher_forced(
    ours: EncoderDecoder, theirs: PreTrainedModel, lengths: list[int], seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Logits of both at the real tokens of padded targets, after padded sources."""
    config = ours.config
    source, real, layout = texts(lengths, config.source_vocab_size or config.vocab_size, seed)
    target, target_real, target_layout = texts(lengths[::-1], config.vocab_size, seed + 1)
    other = theirs(
        input_ids=source,
        attention_mask=real,
        decoder_input_ids=target,
        decoder_attention_mask=target_real,
    ).logits
    mine = ours(source, target, layout, target_layout)
    return mine[target_real.bool()], other[target_real.bool()]


def same_logits(*case: Any) -> None:
    """Teacher-forced logits are the same."""
    assert_close(*teacher_forced(*case))


def same_texts(
    ours: EncoderDecoder,
    theirs: PreTrainedModel,
    lengths: list[int],
    seed: int = 0,
    searches: Sequence[int] = (1, 4),
    **more: Any,
) -> None:
    """Greedy and by four beams, from the architecture's own start, and without padding."""
    config = ours.config
    source, real, layout = texts(lengths, config.source_vocab_size or config.vocab_size, seed)
    apart = config.source_vocab_size not in (0, config.vocab_size)
    for beams in (1,) if OLDER_PEER and apart else searches:
        never = sorted({config.pad_id, config.bos_id} - {config.eos_id})
        given = [] if config.start_id < 0 else [config.start_id]
        output = theirs.generate(
            source,
            attention_mask=real,
            num_beams=beams,
            do_sample=False,
            max_length=None,
            max_new_tokens=6 + len(given),
            suppress_tokens=never,
            forced_eos_token_id=None,
            forced_bos_token_id=given[0] if given else None,
            **more,
        )
        found = generate(
            ours,
            source,
            layout.lengths,
            DecodeConfig(beams, max_length=6),
            prefix=given,
            suppress=never,
        )
        ends = (config.eos_id, config.pad_id)
        texts_there = [until(ends, row[1:]) for row in output.tolist()]  # after the start
        assert [one[0].tokens for one in found] == texts_there
