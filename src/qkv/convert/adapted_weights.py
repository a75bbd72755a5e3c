"""A base model's weights with the updates of a LoRA adapter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.model import Model
from qkv.model.families import AdaptedFrom
from qkv.model.lora import Update, attach
from qkv.model.quantized_matrix import QuantizedMatrix
from qkv.weights import LazyWeights


@dataclass(frozen=True)
class Adapter:
    """Updates of a model's matrices, and weights of its head, each by our names."""

    source: AdaptedFrom
    updates: Mapping[str, list[Update]]
    heads: Mapping[str, Tensor]

    def attach(self, model: Model) -> None:
        """Put the updates beside a model's layers; its head is already filled in."""
        attach(model, self.updates, self.source)


class AdaptedWeights(LazyWeights):
    """A base model's weights with an adapter's updates added, and its head in place of theirs."""

    def __init__(
        self,
        base: Mapping[str, Tensor],
        adapter: Adapter,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.base, self.adapter, self.shapes = base, adapter, dict(shapes)
        self._updates = {f"{name}.weight": update for name, update in adapter.updates.items()}
        stored = base.quantized if isinstance(base, LazyWeights) else frozenset()
        self.quantized = frozenset(stored - self._updates.keys() - adapter.heads.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name in self.adapter.heads:
            return self.adapter.heads[name]
        weight = self.base[name]
        if name not in self._updates:
            return weight
        product = torch.cat([update.product.float() for update in self._updates[name]])
        return (weight.float() + product).to(weight.dtype)

    def matrix(self, name: str) -> QuantizedMatrix | None:
        """Read a weight that is stored as scaled integers and has no update."""
        assert isinstance(self.base, LazyWeights)
        return self.base.matrix(name) if name in self.quantized else None

    def adapters(self) -> list[Adapter]:
        """The adapters that are added, in their order: a base may have been adapted itself."""
        before = self.base.adapters() if isinstance(self.base, AdaptedWeights) else []
        return [*before, self.adapter]

    def without_updates(self) -> AdaptedWeights:
        """The weights before any update, under the last head."""
        base = self.base.without_updates() if isinstance(self.base, AdaptedWeights) else self.base
        return AdaptedWeights(base, dataclasses.replace(self.adapter, updates={}), self.shapes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
