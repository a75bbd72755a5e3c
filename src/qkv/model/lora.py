"""LoRA (Hu et al. 2021): a frozen matrix W plus a product of two thin ones, (α/r)·B·A.

A fused matrix of ours (queries, keys and values) has a pair A, B for each matrix that it holds, as
other libraries train them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.dropout import dropout as drop
from qkv.model.families import AdaptedFrom, Model
from qkv.model.quantized import QuantizedLinear, frozen_product


@dataclass(frozen=True)
class Update:
    """The update of one matrix: scale · B·A, of rank r; rank 0 leaves it as it is."""

    a: Tensor  # (r, in)
    b: Tensor  # (out, r)
    scale: float = 1.0

    @classmethod
    def fresh(cls, n_out: int, n_in: int, rank: int, alpha: float) -> Update:
        """Draw A as a linear layer's weights are drawn; B is zeros, so that nothing changes yet."""
        a = torch.empty(rank, n_in)
        if rank:
            nn.init.kaiming_uniform_(a, a=5**0.5)
        return cls(a, torch.zeros(n_out, rank), alpha / rank if rank else 1.0)

    @property
    def product(self) -> Tensor:
        """scale · B·A, (out, in)."""
        return self.scale * (self.b @ self.a)


class LoRALinear(nn.Module):
    """x·Wᵀ + b + scale·(x·Aᵀ)·Bᵀ, where W is frozen and may be quantised."""

    in_features: int
    out_features: int

    def __init__(
        self,
        base: nn.Linear | QuantizedLinear | LoRALinear,
        updates: Sequence[Update],
        dropout: float = 0.0,
    ) -> None:
        """Update `base`; each update is for the rows of one of the matrices that it holds."""
        super().__init__()
        self.base, self.dropout = base, dropout
        self.in_features, self.out_features = base.in_features, base.out_features
        self.ranks = [len(update.a) for update in updates]
        self.scales = [update.scale for update in updates]
        self.lora_A = nn.Parameter(torch.cat([update.a for update in updates]))  # (Σr, in)
        self.lora_B = nn.ParameterList(update.b for update in updates)  # (out, r) each
        self.is_merged = False

    @property
    def bias(self) -> Tensor | None:
        """The bias of the frozen layer."""
        return self.base.bias

    @property
    def weight(self) -> Tensor:
        """W with its update, (out, in)."""
        weight = self.base.weight
        return weight if self.is_merged else weight + self.product().to(weight)

    def updates(self) -> list[Update]:
        """The update of each matrix that the layer holds."""
        parts = zip(self.lora_A.split(self.ranks), self.lora_B, self.scales, strict=True)
        return [Update(a, b, scale) for a, b, scale in parts]

    @torch.no_grad()
    def load(self, updates: Sequence[Update]) -> None:
        """Copy the values of updates of the same shapes."""
        self.lora_A.copy_(torch.cat([update.a for update in updates]))
        for b, update in zip(self.lora_B, updates, strict=True):
            b.copy_(update.b)

    def product(self) -> Tensor:
        """The update of W, (out, in)."""
        return torch.cat([update.product for update in self.updates()])

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        output = self._base_product(x)
        if self.is_merged:
            return output
        dropped = (drop(x, self.dropout) if self.training else x).to(self.lora_A.dtype)
        thin = F.linear(dropped, self.lora_A)
        # One product that adds to the output at once; the scales are on the smaller factor.
        scaled = [scale * b for scale, b in zip(self.scales, self.lora_B, strict=True)]
        wide = torch.block_diag(*scaled) if len(scaled) > 1 else scaled[0]  # (out, Σr)
        if thin.dtype != output.dtype:
            return output + F.linear(thin, wide).to(output.dtype)
        flat = torch.addmm(output.flatten(0, -2), thin.flatten(0, -2), wide.to(thin.dtype).T)
        return flat.view(output.shape)

    def _base_product(self, x: Tensor) -> Tensor:
        base, device = self.base, x.device.type
        half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if half is None or not isinstance(base, nn.Linear) or base.weight.dtype == half:
            output: Tensor = base(x)
            return output
        # Autocast would keep its copy of W, half as large as W itself, for the backward pass.
        product = frozen_product(x.to(half), base.weight.to)
        return product if base.bias is None else product + base.bias.to(half)

    @torch.no_grad()
    def merge(self, sign: int = 1) -> None:
        """Add the update to W, so that it costs nothing; or take it away again (`sign` -1)."""
        assert isinstance(self.base, nn.Linear) and self.is_merged == (sign < 0)
        self.base.weight += sign * self.product().to(self.base.weight)
        self.is_merged = sign > 0


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers of a model that have updates, by name; of several in one, the outermost."""
    layers = {name: x for name, x in model.named_modules() if isinstance(x, LoRALinear)}
    return {name: layer for name, layer in layers.items() if not _is_inner(name)}


def adaptable(model: nn.Module) -> dict[str, nn.Linear | QuantizedLinear | LoRALinear]:
    """The linear layers inside the blocks, by name; those with updates can have more of them."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | QuantizedLinear | LoRALinear)
        and ".blocks." in f".{name}"
        and not _is_inner(name)
    }


def _is_inner(name: str) -> bool:
    """Whether a layer is the frozen one inside of another."""
    return name.endswith(".base")


def attach(
    model: Model,
    updates: Mapping[str, Sequence[Update]],
    source: AdaptedFrom,
    dropout: float = 0.0,
) -> None:
    """Put updates beside the linear layers that they are for; everything else is frozen."""
    model.requires_grad_(False)
    model.adapted_from = source
    layers = adaptable(model)
    for name, update in updates.items():
        parent, _, child = name.rpartition(".")
        base = layers[name]
        layer = LoRALinear(base, update, dropout)
        setattr(model.get_submodule(parent), child, layer.to(_device(base)))


def merge(model: nn.Module) -> None:
    """Add all updates to the weights."""
    for layer in lora_layers(model).values():
        layer.merge()


def unmerge(model: nn.Module) -> None:
    """Take all updates out of the weights again."""
    for layer in lora_layers(model).values():
        layer.merge(-1)


def sharing_weights(model: Model) -> Model:
    """Copy a model but not its weights, so that another adapter can be attached to these."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [x._packed for x in model.modules() if isinstance(x, QuantizedLinear)]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _device(layer: nn.Linear | QuantizedLinear | LoRALinear) -> torch.device:
    if isinstance(layer, QuantizedLinear):
        return layer.device
    return (layer.lora_A if isinstance(layer, LoRALinear) else layer.weight).device
