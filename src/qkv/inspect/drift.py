"""How far the residual stream has moved from its input, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.inspect.lens import layer_names, stack_of, stream_keys

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.trace import Trace


@dataclass(frozen=True)
class Drift:
    """For each layer, the input first, and each token: where the stream stands."""

    layers: tuple[str, ...]
    tokens: tuple[str, ...]
    cosine: Tensor  # (layers, tokens): of the angle to the input; 1 is its direction
    distance: Tensor  # (layers, tokens): |h − input| / |input|
    step: Tensor  # (layers, tokens): |h − the layer before| / |the layer before|

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """A figure: the cosine to the input over the layers, a line for each token."""
        from qkv.inspect.views import draw_drift

        return draw_drift(self, viewer_fonts)

    def _repr_html_(self) -> str:
        from qkv.inspect.views import drift_fragment

        return drift_fragment(self)


def drift(trace: Trace, stack: str | None = None, row: int = 0) -> Drift:
    """Compare a stack's residual stream with what it began as."""
    stack = stack_of(trace, stack)
    keys = stream_keys(trace, stack)
    tokens = trace.tokens("source" if stack == "encoder" else "target", row)
    found = [value[row, : len(tokens)].float() for value in trace.peek(keys).values()]
    stream = torch.stack(found)  # (layers, tokens, D)
    start, before = stream[:1], torch.cat([stream[:1], stream[:-1]])
    return Drift(
        layers=tuple(layer_names(keys)),
        tokens=tuple(tokens),
        cosine=F.cosine_similarity(stream, start, dim=-1),
        distance=(stream - start).norm(dim=-1) / start.norm(dim=-1),
        step=(stream - before).norm(dim=-1) / before.norm(dim=-1),
    )
