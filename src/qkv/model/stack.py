"""The stack: positions, blocks, and a final norm where the blocks are pre-norm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.config import ModelConfig
from qkv.model.attention import KeysValues
from qkv.model.block import Block
from qkv.model.cache import NewTokens
from qkv.model.convolution import Neighbours
from qkv.model.dropout import Dropout
from qkv.model.mask import Layout, Mask, cross_mask, self_mask
from qkv.model.norm import build_norm
from qkv.model.positions import Order, build_other_positions, build_positions
from qkv.model.regions import Part, region


@dataclass(frozen=True)
class Memory:
    """An encoded source for the decoder: K and V of each layer, and their layout."""

    layers: tuple[KeysValues, ...]
    layout: Layout

    def mask(self, queries: Layout, n_queries: int) -> Mask:
        """Mask of queries with this layout over the source."""
        key = self.layers[0].key
        return cross_mask(queries, self.layout).draw(n_queries, key.shape[-2], key.device)


class Stack(nn.Module):
    """Blocks of one kind: bidirectional or causal, with or without cross-attention."""

    def __init__(
        self, config: ModelConfig, n_layers: int, causal: bool, cross: bool = False
    ) -> None:
        super().__init__()
        self.causal, self.max_length = causal, config.max_length
        has_windows = causal or config.family == "encoder"
        self.windows = [config.window_of(layer) * has_windows for layer in range(n_layers)]
        width = config.embedding_width
        self.position_kinds = [config.positions_of(layer) for layer in range(n_layers)]
        self.positions = build_positions(config, causal)
        self.other_positions = nn.ModuleDict(build_other_positions(config, {*self.position_kinds}))
        self.input_norm = build_norm(config, width) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.widen = nn.Linear(width, config.d_model) if config.d_embedding else nn.Identity()
        n_blocks = 1 if config.shared_layers else n_layers
        self.blocks = nn.ModuleList(
            Block(config, cross, first=layer == 0) for layer in range(n_blocks)
        )
        self.neighbours = Neighbours(config) if config.convolution else None
        post = config.norm_position == "post"
        self.norm = nn.Identity() if post else build_norm(config)
        self.recompute = False  # what happens inside of blocks, in the backward pass

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        cache: NewTokens | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Embedded tokens to the last layer's output, (B, T, D)."""
        masks, positions, key_positions = self._masks_and_positions(x, layout, cache)
        x = self.widen(self.dropout(self.input_norm(self.positions.add(x, positions))))
        x = x.to(_product_dtype(x))
        orders = self._orders(positions, key_positions)
        memory_mask = memory.mask(layout, x.shape[1]) if memory else None
        for index in range(len(self.windows)):
            before = x
            x = self._run(self.blocks[index % len(self.blocks)])(
                x,
                masks[self.windows[index]],
                orders[self.position_kinds[index]],
                cache.layer(index) if cache else None,
                memory.layers[index] if memory else None,
                memory_mask,
            )
            if index == 0 and self.neighbours is not None:
                x = self.neighbours(before, x, layout)
        return self.norm(x)

    def _run(self, block: nn.Module) -> Part:
        run = region(block)
        if not (self.recompute and self.training and torch.is_grad_enabled()):
            return run
        return partial(checkpoint, run, use_reentrant=False)

    def _masks_and_positions(
        self, x: Tensor, layout: Layout, cache: NewTokens | None
    ) -> tuple[dict[int, Mask], Tensor, Tensor]:
        """Masks by window size, positions of the tokens, and positions of the keys."""
        n_tokens, windows = x.shape[1], sorted(set(self.windows))
        if cache is None:
            masks = {window: self_mask(layout, self.causal, window) for window in windows}
            positions = layout.positions(n_tokens, x.device)
            return _drawn(masks, n_tokens, n_tokens, x.device), positions, positions
        masks = {window: cache.mask(n_tokens, window) for window in windows}
        positions = cache.positions(n_tokens, self.max_length)
        key_positions = cache.key_positions(n_tokens)
        n_keys = key_positions.shape[-1]
        return _drawn(masks, n_tokens, n_keys, x.device), positions, key_positions

    def _orders(self, positions: Tensor, key_positions: Tensor) -> dict[str, Order]:
        """Each scheme of positions that layers have, looked up once for all of them."""
        schemes = {"usual": self.positions, **dict(self.other_positions.items())}
        return {
            kind: Order.of(schemes[kind], positions, key_positions)  # type: ignore[arg-type]
            for kind in sorted({*self.position_kinds})
        }

    def remember(self, memory: Tensor, layout: Layout) -> Memory:
        """Project the encoder's output to K and V once for every layer."""
        layers = [block.cross_attention.remember(memory) for block in self.blocks]  # type: ignore[union-attr,operator]
        return Memory(tuple(layers * (len(self.windows) // len(layers))), layout)


def _product_dtype(x: Tensor) -> torch.dtype:
    """The type in which matrices are multiplied, which the residual stream then has as well.

    Under autocast it would else stay in float32, and half of the time outside of products would go
    into moving it.
    """
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def recompute_blocks(model: nn.Module, on: bool) -> None:
    """Let all stacks of a model keep the inputs of blocks alone while they train, or all."""
    for module in model.modules():
        if isinstance(module, Stack):
            module.recompute = on


def _drawn(
    masks: dict[int, Mask], n_queries: int, n_keys: int, device: torch.device
) -> dict[int, Mask]:
    """Draw each mask once for all layers that use it."""
    return {window: mask.draw(n_queries, n_keys, device) for window, mask in masks.items()}
