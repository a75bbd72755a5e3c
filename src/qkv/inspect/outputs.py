"""What logits say: probabilities, and the loss of what should have been said."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data import IGNORE
from qkv.inspect.reading import Reading


def probabilities(logits: Tensor, reading: Reading) -> Tensor:
    """P of the logits, as what is said of it asks for."""
    if reading.says == "each":
        return logits.sigmoid()
    if reading.says == "spans":
        return _over_tokens(logits, reading).softmax(dim=-1).transpose(1, 2)
    return logits.softmax(dim=-1)


def loss(logits: Tensor, labels: Tensor, reading: Reading) -> Tensor:
    """L(θ): the mean of −log P over what is asked for; for a number, the squared error."""
    if reading.says == "number":
        return F.mse_loss(logits, labels.float())
    if reading.says == "each":
        return F.binary_cross_entropy_with_logits(logits, labels.float())
    if reading.says == "spans":
        logits = _over_tokens(logits, reading)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE)


def _over_tokens(logits: Tensor, reading: Reading) -> Tensor:
    """(B, S, 2) to (B, 2, S): start and end each choose a token, and none that is padding."""
    lengths = reading.source.layout.lengths if reading.source else None
    if lengths is not None:
        beyond = torch.arange(logits.shape[1], device=logits.device) >= lengths[:, None]
        logits = logits.masked_fill(beyond[:, :, None], float("-inf"))
    return logits.transpose(1, 2)
