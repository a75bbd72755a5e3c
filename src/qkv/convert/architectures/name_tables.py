"""Tables of names: our modules and theirs, and how a tensor is laid out in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.config import ModelConfig


@dataclass(frozen=True)
class Form:
    """How one tensor of theirs is laid out: to ours, and back."""

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor], Tensor]


AS_IS = Form(lambda theirs: theirs, lambda ours: ours)
TRANSPOSED = Form(torch.t, torch.t)  # a bias stays as it is
FLIPPED = Form(lambda theirs: theirs.flip(0), lambda ours: ours.flip(0))
IN_A_ROW = Form(lambda theirs: theirs[0], lambda ours: ours[None])  # a first dimension of 1


def after(rows: int) -> Form:
    """Theirs has rows before ours, which no model reads."""
    return Form(
        lambda theirs: theirs[rows:],
        lambda ours: torch.cat([ours.new_zeros(rows, *ours.shape[1:]), ours]),
    )


def by_head(n_heads: int) -> Form:
    """Theirs has each head's query, key and value together; ours all queries, keys and values."""
    return Form(
        lambda theirs: theirs.unflatten(0, (n_heads, 3, -1)).transpose(0, 1).flatten(0, 2),
        lambda ours: ours.unflatten(0, (3, n_heads, -1)).transpose(0, 1).flatten(0, 2),
    )


class Part(NamedTuple):
    """A tensor of theirs, and its form."""

    name: str
    form: Form = AS_IS


@dataclass(frozen=True)
class Module:
    """A module of theirs whose form is not ours, or depends on the config."""

    name: str
    form: Form | Callable[[ModelConfig], Form]

    def part(self, prefix: str, kind: str, config: ModelConfig) -> Part:
        """Its weight or its bias."""
        form = self.form if isinstance(self.form, Form) else self.form(config)
        return Part(f"{prefix}{self.name}.{kind}", form)


Theirs = str | Module | tuple[str, ...]
"""One module of theirs, or several whose rows one of ours holds one under the other."""
Table = Mapping[str, Theirs]
"""Our modules' names, and theirs."""


@dataclass(frozen=True)
class Rule:
    """One weight of ours, the tensors that it is made of, and how many of its rows are of each."""

    ours: str
    parts: tuple[Part, ...]
    rows: tuple[int, ...] = ()

    def read(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Our weight, from theirs."""
        rows = [part.form.read(tensors[part.name]) for part in self.parts]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def write(self, weight: Tensor) -> dict[str, Tensor]:
        """Their tensors, from our weight; of shapes alone where it has no memory."""
        pieces = weight.split(self.rows) if self.rows else [weight]
        return {
            part.name: part.form.write(piece)
            for part, piece in zip(self.parts, pieces, strict=True)
        }


def modules(config: ModelConfig, ours: str, theirs: str, table: Table) -> Iterator[Rule]:
    """A rule for the weight and one for the bias of each module in a table, after prefixes."""
    for mine, others in table.items():
        names = others if isinstance(others, tuple) else (others,)
        parts = [Module(name, AS_IS) if isinstance(name, str) else name for name in names]
        for kind in ("weight", "bias"):
            yield Rule(
                f"{ours}{mine}.{kind}",
                tuple(part.part(theirs, kind, config) for part in parts),
                _rows(mine, config) if len(parts) > 1 else (),
            )


def layers(
    config: ModelConfig, ours: str, theirs: str, table: Table, n_layers: int
) -> Iterator[Rule]:
    """The rules of a table for every layer, whose number replaces {} in the prefixes."""
    for layer in range(n_layers):
        yield from modules(config, ours.format(layer), theirs.format(layer), table)


@dataclass(frozen=True)
class Names:
    """Where checkpoints with one stack keep each weight; a call with a config gives the rules."""

    stack: str  # ours: encoder or decoder
    prefix: str  # theirs, of all but a head's names
    body: Table
    layer: str  # theirs, of a layer's names after the prefix; {} is its number
    block: Table
    heads: Mapping[str, Table]

    def __call__(self, config: ModelConfig, head: str) -> Iterator[Rule]:
        """Rules for the body, for every layer and for the head."""
        ours, theirs = f"{self.stack}.blocks.{{}}.", self.prefix + self.layer
        yield from modules(config, "", self.prefix, self.body)
        depth = getattr(config, f"n_{self.stack}_layers")
        yield from layers(config, ours, theirs, self.block, depth)
        yield from modules(config, "", "", self.heads.get(head, {}))


def _rows(module: str, config: ModelConfig) -> tuple[int, ...]:
    """How many rows of a fused matrix belong to each of the matrices that it holds."""
    queries, keys = config.n_heads * config.d_head, config.kv_heads * config.d_head
    if module.endswith("query_key_value"):
        return queries, keys, keys
    return (keys, keys) if module.endswith("key_value") else (config.d_ff, config.d_ff)
