"""The panes that look at attention: its maps, and what they hand on through the layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from qkv.errors import UserError
from qkv.inspect import pages
from qkv.inspect.attention_maps import AttentionMaps, chosen, kinds_of
from qkv.inspect.maps import draw_map
from qkv.inspect.panes import IN_PAGE, PassPane, map_text
from qkv.inspect.save import svg_fragment
from qkv.model import EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "encoder": "encoder.self_attention",
    "masked": "decoder.self_attention",
    "cross": "decoder.cross_attention",
}
PANELS = 48  # maps in one figure; of more, the last layers are drawn


class AttentionPane(PassPane):
    """Who looks at whom."""

    title = "Attention"
    about = "How much each token (row) looks at each other (column); every row sums to 1."

    def check(self) -> None:
        """Not every model has every kind, layer and head."""
        for kind in self.kinds.values():
            chosen(self.wish.layers, self._n_layers(kind), "layer")
            chosen(self.wish.heads, self.trace.sizes["H"], "head")

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Which attentions are looked at, those with the layers that are asked for."""
        own = {name: kind for name, kind in KINDS.items() if kind in kinds_of(self.trace)}
        if asked := self.wish.attention:
            if asked not in own:
                raise UserError(f"This model has no {asked} attention; it has {' and '.join(own)}.")
            return {asked: own[asked]}
        highest = max(self.wish.layers, default=-1)
        deep = {name: kind for name, kind in own.items() if highest < self._n_layers(kind)}
        return deep or own

    def _n_layers(self, kind: str) -> int:
        return len(self.trace.keys(kind.replace(".", ".*.") + ".weights"))

    def _maps(self, kind: str) -> AttentionMaps:
        """All layers and heads that are asked for, or the last layers where they are very many."""
        layers: Sequence[int] = self.wish.layers
        n_layers, n_heads = self._n_layers(kind), len(self.wish.heads) or self.trace.sizes["H"]
        if not layers:
            fit = n_layers if n_layers * n_heads <= PANELS else min(4, max(1, PANELS // n_heads))
            layers = range(n_layers - fit, n_layers)
            if fit < n_layers:
                self._remark(f"the last {fit} of {n_layers} layers; --layer shows others")
        return self.trace.maps(kind, layers, self.wish.heads or None)

    def _remark(self, remark: str) -> None:
        if (remark := f"attention: {remark}") not in self.remarks:
            self.remarks.append(remark)

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """A panel a head, of the attention nearest to the output."""
        *others, (name, kind) = self.kinds.items()
        if others:
            rest = " or ".join(f"--attention {other}" for other, _ in others)
            self._remark(f"{name} is drawn; {rest} shows the others")
        return self._maps(kind).draw(viewer_fonts)

    def html(self) -> str:
        """Every kind: small tables, or pictures where these would have too many cells."""
        every = [self._maps(kind) for kind in self.kinds.values()]
        if sum(maps.weights.numel() for maps in every) <= IN_PAGE:
            return "".join(maps._repr_html_() for maps in every)
        return "".join(svg_fragment(maps.draw(viewer_fonts=True)) for maps in every)

    def numbers(self) -> Any:
        """Weights (layers, heads, T, S) of every kind, with their tokens."""
        found = {}
        for name, kind in self.kinds.items():
            maps = self._maps(kind)
            found[name] = {
                "layers": list(maps.layers),
                "heads": list(maps.heads),
                "rows": list(maps.rows),
                "columns": list(maps.columns),
                "weights": maps.weights.tolist(),
            }
        return found

    def text(self, width: int) -> Iterator[RenderableType]:
        """The mean over heads of the last layer, or what is asked for."""
        for kind in self.kinds.values():
            layers = self.wish.layers or (self._n_layers(kind) - 1,)
            maps = self.trace.maps(kind, layers, self.wish.heads or None)
            for place, layer in enumerate(layers):
                heads = maps.weights[place]
                named = [f"head {head}" for head in self.wish.heads]
                if not named:
                    heads, named = heads.mean(dim=0, keepdim=True), [f"mean of {len(heads)} heads"]
                for weights, head in zip(heads, named, strict=True):
                    title = f"{maps.title}, layer {layer}, {head}"
                    allowed = maps.allowed[place, 0]
                    yield from map_text(weights, maps.rows, maps.columns, width, title, allowed)


class RolloutPane(PassPane):
    """Attention multiplied through the layers."""

    title = "Attention rollout"
    about = (
        "Attention maps multiplied through the layers, as if tokens were handed on unchanged; "
        "attribution is the sounder answer."
    )

    @cached_property
    def map(self) -> tuple[Any, list[str], list[str]]:
        """Shares, the tokens that get, and the tokens that give."""
        trace = self.trace
        across = isinstance(trace.model, EncoderDecoder)
        rows = trace.tokens("target" if trace.reading.target else "source")
        return trace.rollout(), rows, trace.tokens("source") if across else rows

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """One map."""
        title = "What attention hands on through all layers"
        return draw_map(*self.map, title, value="share", viewer_fonts=viewer_fonts)

    def html(self) -> str:
        """A table, or a picture where it would have too many cells."""
        return pages.heat_map(*self.map) if self.map[0].numel() <= IN_PAGE else super().html()

    def numbers(self) -> Any:
        """Shares (T, S) with their tokens."""
        shares, rows, columns = self.map
        return {"rows": rows, "columns": columns, "shares": shares.tolist()}

    def text(self, width: int) -> Iterator[RenderableType]:
        """Shaded blocks."""
        shares, rows, columns = self.map
        yield from map_text(shares, rows, columns, width)
