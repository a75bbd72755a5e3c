"""What the tests of all text encoders share: sizes, what both models say, and both ways."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qkv.model import Encoder, Layout
from tests.convert.harness import texts

TINY = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 16,
}


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
