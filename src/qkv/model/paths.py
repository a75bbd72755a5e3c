"""Choosing between the two paths of every attention in a model."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from qkv.model.attention import Attend, Attention


@contextmanager
def use_path(model: nn.Module, path: Attend) -> Iterator[None]:
    """Run the model on `equation` or `fast` inside the block, whatever it ran on before."""
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    before = [attention.attend for attention in attentions]
    for attention in attentions:
        attention.attend = path
    try:
        yield
    finally:
        for attention, attend in zip(attentions, before, strict=True):
            attention.attend = attend
