"""What both halves of lab 19 need: small encoders, and texts in rows with or without masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from qkv.data.corruption import Masker
from qkv.data.encoded import spread
from qkv.data.sequences import padded_sequences, side

from qkv.config import MaskConfig, ModelConfig
from qkv.data import Batch, Framed, Ragged, Sequences, Specials
from qkv.data.batch import in_rows
from qkv.model import Encoder


def small_encoder(vocab_size: int, width: int, special: Specials) -> ModelConfig:
    """Two blocks that guess hidden tokens and tell pairs."""
    return ModelConfig(
        family="encoder",
        vocab_size=vocab_size,
        d_model=width,
        n_heads=4,
        d_ff=2 * width,
        n_encoder_layers=2,
        n_decoder_layers=0,
        n_segments=2,
        dropout=0.0,
        max_length=64,
        norm_position="pre",
        head="masked",
        pooling="mean",
        pair_head=True,
        pad_id=special.pad,
        bos_id=special.bos,
        eos_id=special.eos,
    )


def fresh(config: ModelConfig, seed: int) -> Encoder:
    """First weights by the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(config)


def masker_of(
    config: MaskConfig, mask_id: int, special_ids: Sequence[int], vocab_size: int
) -> Masker:
    """What hides single tokens."""
    special = np.zeros(vocab_size, np.bool_)
    special[list(special_ids)] = True
    return Masker(config, mask_id, special, lambda ids: np.ones(len(ids), np.bool_))


def masked_batch(
    framed: Sequence[Framed], masker: Masker, random: np.random.Generator, pad: int
) -> Batch:
    """Hide tokens, and lay the sequences in rows."""
    tokens = Ragged.of([one.tokens for one in framed])
    segments = Ragged.of([one.segments for one in framed])
    # As one text, for 5 % of a single sentence would be less than a token.
    hidden = masker(Ragged(tokens.tokens, tokens.offsets[[0, -1]]), random)
    rows = in_rows(tokens.lengths, 1)
    places = torch.from_numpy(spread(rows.starts, tokens.offsets)[hidden.places])
    target = side(Ragged(hidden.tokens, tokens.offsets), segments, rows, pad)
    return Batch(None, target, torch.from_numpy(hidden.labels), len(hidden.labels), places)


def sequences(framed: Sequence[Framed], labels: Sequence[int], special: Specials) -> Batch:
    """Labelled texts in rows."""
    return padded_sequences(Sequences.of(framed, np.array(labels)), range(len(labels)), special)
