"""The block: sublayers, each wrapped once in a residual connection and a norm (section 3.1)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model.attention import Attention, KeysValues
from qkv.model.cache import LayerCache
from qkv.model.dropout import Dropout
from qkv.model.experts import Experts
from qkv.model.feed_forward import FeedForward
from qkv.model.mask import Mask
from qkv.model.norm import build_norm
from qkv.model.positions import Order


class Residual(nn.Module):
    """post: norm(x + f(x)), as in the paper; pre: x + f(norm(x)); both: x + norm(f(norm(x))).

    Dropout is on what is added to x. The result has the type of x, also where norms compute in a
    more exact one.
    """

    def __init__(self, config: ModelConfig, has_norm: bool = True) -> None:
        super().__init__()
        self.pre = config.norm_position != "post"
        self.norm = build_norm(config) if has_norm else nn.Identity()
        both = config.norm_position == "both"
        self.output_norm = build_norm(config) if both else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], read: Tensor | None = None
    ) -> Tensor:
        """Add what a sublayer makes of x, or of another vector that it is to read."""
        read = x if read is None else read
        if self.pre:
            return (x + self._drop(self.output_norm(sublayer(self.norm(read))))).to(x.dtype)
        return self.norm(x + self._drop(sublayer(read))).to(x.dtype)

    def _drop(self, added: Tensor) -> Tensor:
        return self.dropout(added) if self.training else added


class Block(nn.Module):
    """Self-attention, cross-attention where there is a source, feed-forward."""

    def __init__(self, config: ModelConfig, cross: bool = False, first: bool = False) -> None:
        super().__init__()
        self.parallel = config.parallel
        self.self_attention = Attention(config)
        self.self_attention_residual = Residual(config, config.first_norm or not first)
        if cross:
            self.cross_attention = Attention(config, cross=True)
            self.cross_attention_residual = Residual(config)
        self.feed_forward = Experts(config) if config.n_experts else FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        order: Order,
        cache: LayerCache | None = None,
        memory: KeysValues | None = None,
        memory_mask: Mask | None = None,
    ) -> Tensor:
        """Apply the sublayers to the residual stream, (B, T, D)."""
        block_input = x
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, mask, order, cache))
        if memory is not None and memory_mask is not None:
            x = self.cross_attention_residual(
                x, lambda x: self.cross_attention.look(x, memory, memory_mask)
            )
        return self.feed_forward_residual(
            x, self.feed_forward, read=block_input if self.parallel else x
        )
