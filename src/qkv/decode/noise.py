"""Random numbers as a pure function of their position: no generator, no state.

The number for (seed, sentence, draw, step, token) is a hash of those five. So a sentence gets one
text in any batch, on any device, and a sampling step can be compiled or captured as a graph.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

Word = TypeVar("Word", Tensor, int)
WORD = 0xFFFFFFFF  # 32-bit words are kept in int64, since torch has no unsigned arithmetic


def mix(word: Word) -> Word:
    """Scramble 32-bit words so that each input bit changes every output bit half of the time.

    The multipliers and shifts are C. Wellons' `lowbias32`, found by search for the least bias.
    """
    word = (word ^ (word >> 16)) * 0x7FEB352D & WORD
    word = (word ^ (word >> 15)) * 0x846CA68B & WORD
    return word ^ (word >> 16)


def stream(seed: int, id: int, draw: int) -> int:
    """Return the random stream of one draw of one sentence."""
    sentence = mix(mix(mix(seed & WORD) ^ (seed >> 32 & WORD)) ^ (id & WORD))
    return mix(sentence ^ mix(draw + 1))


def uniform(streams: Tensor, step: Tensor, n_tokens: int) -> Tensor:
    """Return numbers in (0, 1) for each token at this step of each stream, (…, V) float32."""
    token = torch.arange(n_tokens, device=streams.device)
    words = mix(mix(streams ^ mix(step + 1))[..., None] ^ mix(token + 1))
    # The cap keeps 1.0, to which the largest words would round, out of the range.
    return ((words + 0.5) * 2.0**-32).float().clamp(max=1 - 2.0**-24)


def gumbel(streams: Tensor, step: Tensor, n_tokens: int) -> Tensor:
    """Return Gumbel noise: the argmax of logits plus it samples softmax(logits), (…, V)."""
    # -log(1 - u) rather than -log(u): float32 is finest near 0, and small values decide the draw.
    return -torch.log(-torch.log1p(-uniform(streams, step, n_tokens)))
