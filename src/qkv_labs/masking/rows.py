"""Texts in rows for the encoders of lab 19, with and without hidden tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data import Framed, Specials
from qkv.model import Encoder, Layout
from qkv_labs import tools


@dataclass(frozen=True)
class Special(Specials):
    """The ids of the tokens that are not text."""

    mask: int
    others: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Rows:
    """Framed texts, padded to the longest."""

    tokens: Tensor  # (B, T)
    segments: Tensor
    layout: Layout

    @classmethod
    def of(cls, framed: Sequence[Framed], special: Special) -> Rows:
        """Lay texts in rows."""
        tokens, segments = (tools.column(framed, name) for name in ("tokens", "segments"))
        padded = tools.padded(tokens, special.pad), tools.padded(segments, 0)
        return cls(*padded, tools.lengths(tokens))

    def hidden(self, model: Encoder) -> Tensor:
        """Return an encoder's vectors of the texts, (B, T, D)."""
        return model.hidden(self.tokens, self.layout, self.segments)


def small_encoder(
    vocab_size: int, width: int, special: Special, seed: int, **settings: Any
) -> Encoder:
    """Build an encoder of two blocks that predicts hidden tokens and pairs."""
    heads: dict[str, Any] = {"head": "masked", "pooling": "mean", "pair_head": True, **settings}
    ids = {"pad_id": special.pad, "bos_id": special.bos, "eos_id": special.eos}
    return tools.encoder(vocab_size, width, 2, seed, n_segments=2, max_length=64, **ids, **heads)


def hide(
    rows: Rows,
    special: Special,
    vocab_size: int,
    share: float,
    random: np.random.Generator,
    drawn: float = 0.1,
    kept: float = 0.1,
) -> tuple[Rows, Tensor]:
    """Hide a share of all tokens, some behind a random token or themselves; return which.

    Of the whole batch, for 5 % of a single sentence would be less than a token.
    """
    apart = {special.pad, special.bos, special.eos, special.mask, *special.others}
    ordinary = torch.tensor([token not in apart for token in range(vocab_size)])
    tokens = rows.tokens.flatten()
    candidates = ordinary[tokens].nonzero()[:, 0].numpy()
    count = max(1, round(share * len(candidates)))
    places = np.sort(candidates[np.argsort(random.random(len(candidates)))[:count]])
    chance = random.random(count)
    words = ordinary.nonzero()[:, 0].numpy()
    other = words[random.integers(len(words), size=count)]
    shown = np.where(chance < drawn, other, tokens.numpy()[places])
    hidden = tokens.clone()
    hidden[torch.from_numpy(places)] = torch.from_numpy(
        np.where(chance < drawn + kept, shown, special.mask)
    )
    which = torch.zeros(tokens.shape, dtype=torch.bool)
    which[torch.from_numpy(places)] = True
    seen = Rows(hidden.view_as(rows.tokens), rows.segments, rows.layout)
    return seen, which.view_as(rows.tokens)
