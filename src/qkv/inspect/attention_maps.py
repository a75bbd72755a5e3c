"""Attention maps of a trace, which draw themselves: layers × heads, tokens on both axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from qkv.inspect.trace import Trace


@dataclass(frozen=True)
class AttentionMaps:
    """Weights (layers, heads, T, S) with the tokens that look and the tokens that are seen."""

    title: str
    weights: Tensor
    allowed: Tensor  # (layers, 1, T, S) bool: what the mask lets a token see
    rows: tuple[str, ...]  # tokens that look
    columns: tuple[str, ...]  # tokens that are seen
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """A figure: a panel a head, a row of panels a layer."""
        from qkv.inspect.maps import draw_map, draw_maps

        if self.weights.shape[:2] == (1, 1):
            title = f"{self.title}, layer {self.layers[0]}, head {self.heads[0]}"
            return draw_map(
                self.weights[0, 0],
                self.rows,
                self.columns,
                title,
                allowed=self.allowed[0, 0],
                viewer_fonts=viewer_fonts,
            )
        return draw_maps(
            self.weights,
            self.rows,
            self.columns,
            self.title,
            allowed=self.allowed,
            layers=self.layers,
            heads=self.heads,
            viewer_fonts=viewer_fonts,
        )

    def shaded(self, layer: int = 0, head: int = 0, width: int = 80) -> Text:
        """One of the maps, by its place among them, in shaded blocks for a terminal."""
        from qkv.inspect.maps import shaded

        one = self.weights[layer, head]
        return shaded(one, self.rows, self.columns, width, self.allowed[layer, 0])

    def _repr_html_(self) -> str:
        from qkv.inspect.pages import heat_maps

        return heat_maps(
            self.weights, self.rows, self.columns, self.title, self.allowed, self.layers, self.heads
        )


NAMES = {
    "encoder.self_attention": "Self-attention of the encoder",
    "decoder.self_attention": "Masked self-attention of the decoder",
    "decoder.cross_attention": "Cross-attention: target tokens look at source tokens",
}


def attention_maps(
    trace: Trace,
    kind: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    row: int = 0,
) -> AttentionMaps:
    """Maps of one kind, as `encoder.self_attention`; by default the one nearest to the output."""
    kinds = kinds_of(trace)
    kind = kind or kinds[-1]
    if kind not in kinds:
        raise UserError(f"This model has no {kind!r}; it has {', '.join(kinds)}.")
    stack, _, name = kind.partition(".")
    keys = trace.keys(f"{stack}.*.{name}.weights")
    layers = chosen(layers, len(keys), "layer")
    heads = chosen(heads, trace.sizes["H"], "head")
    parts = [_layer(trace, keys[layer].removesuffix(".weights"), heads) for layer in layers]
    queries = trace.tokens("source" if stack == "encoder" else "target", row)
    columns = queries if name == "self_attention" else trace.tokens("source", row)
    weights, allowed = (
        torch.stack([part[which][row, :, : len(queries), : len(columns)] for part in parts])
        for which in (0, 1)
    )
    return AttentionMaps(
        NAMES[kind],
        weights.float().cpu(),
        allowed.cpu(),
        tuple(queries),
        tuple(columns),
        tuple(layers),
        tuple(heads),
    )


def kinds_of(trace: Trace) -> list[str]:
    """Which attentions a model has, from the source to the output."""
    return [kind for kind in NAMES if trace.keys(kind.replace(".", ".*.") + ".weights")]


def chosen(given: Sequence[int] | None, count: int, what: str) -> Sequence[int]:
    """The layers or heads that are asked for, all where none is named; each must be there."""
    for one in given or ():
        if not 0 <= one < count:
            raise UserError(f"There is no {what} {one}: this model has {count}, 0 to {count - 1}.")
    return given or range(count)


def _layer(trace: Trace, at: str, heads: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Weights of the heads that are looked at, (B, heads, T, S), and what the mask allows."""
    names = [f"{at}.weights", f"{at}.scores"]
    if list(heads) == list(range(trace.sizes["H"])):
        found = trace.peek(names)
        scores = found[names[1]][:, :1]
        return found[names[0]], ~scores.isneginf()
    each = [trace.peek(names, head=head) for head in heads]
    weights = torch.cat([one[names[0]] for one in each], dim=1)
    return weights, ~each[0][names[1]].isneginf()
