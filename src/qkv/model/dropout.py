"""Dropout whose random mask is cheap on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**16  # a probability is rounded to one of these, because a draw is 16 bits


def dropout(x: Tensor, probability: float) -> Tensor:
    """Set elements to zero with this probability, and divide the others by that of keeping them.

    torch draws on a CPU one element after another, on one core, a 64-bit number each: here such a
    number serves four elements. The kept ones are divided by what the rounded probability keeps.
    """
    dropped = round(probability * STEPS)
    if not 0 < dropped < STEPS or type(x) is not Tensor or not _draws_bits(x):
        return F.dropout(x, probability)
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = drawn.view(torch.int16)[: x.numel()].view(x.shape)
    # Compared into the type of x: without a boolean mask that would have to be converted.
    kept = torch.ge(bits, dropped - STEPS // 2, out=torch.empty(x.shape, dtype=x.dtype))
    return x * kept.mul_(STEPS / (STEPS - dropped))


def _draws_bits(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


class Dropout(nn.Dropout):
    """`dropout` while training."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of any shape."""
        return dropout(x, self.p) if self.training else x
