"""Contributions: what each layer and head adds to one logit, summing up exactly to it.

Every norm on the way to the output is linear once its deviation is fixed at the value that it has
in this pass, so that a logit is a sum over everything that was ever added to the residual stream
(direct logit attribution).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.console import RenderableType
from torch import Tensor, nn

from qkv.data import IGNORE
from qkv.inspect.answers.answer import (
    Answer,
    Question,
    View,
    lacks_known_norms,
    the_trace,
    token_position,
)
from qkv.inspect.draw.heat_map import HeatMap, clipping_note, robust_limit
from qkv.inspect.draw.labels import decimal, visible
from qkv.inspect.draw.language import localized, localized_each
from qkv.inspect.draw.panels import draw_by_head, map_by_head
from qkv.inspect.draw.style import ABOVE, BELOW, DIVERGING, array, caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.opened import gain_of
from qkv.inspect.trace.outputs import label_name, row_labels
from qkv.inspect.trace.trace import Trace
from qkv.model import Encoder
from qkv.model.norm import RMSNormPlusOne

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTENTIONS = ("self_attention", "cross_attention")


@dataclass(frozen=True)
class Contributions(Answer):
    """Terms of one logit: of heads (layers, heads), of feed-forward layers, and of the rest."""

    token: str  # at which it is predicted
    position: int
    output: str
    logit: float
    heads: dict[str, Tensor]  # by attention
    feed_forward: Tensor  # (layers,)
    others: dict[str, float]  # the input, biases, shifts of norms, and what is left

    @property
    def total(self) -> float:
        """The sum of all terms."""
        inner = [float(x.sum()) for x in (*self.heads.values(), self.feed_forward)]
        return sum(inner) + sum(self.others.values())

    @property
    def title(self) -> str:
        """Which logit it is."""
        title = "What adds to the logit of {output} after {token}: {logit:.3f}"
        names = {"output": visible(self.output), "token": visible(self.token)}
        return localized(title, **names, logit=self.logit)

    def maps(self) -> list[HeatMap]:
        """A map per attention: layers down, heads across."""
        return [
            map_by_head(values, _said(name), "added to the logit", self._limit)
            for name, values in self.heads.items()
        ]

    @property
    def _limit(self) -> float:
        """The value of the strongest colour in the maps of all attentions."""
        return max(robust_limit(array(values)) for values in self.heads.values())

    def parts(self) -> list[HeatMap | Table]:
        """The maps, and the table of sums that add up to the logit."""
        rows = [
            (localized("all heads of {name}", name=_said(name)), float(x.sum()))
            for name, x in self.heads.items()
        ]
        rows += [
            (localized("feed-forward of layer {layer}", layer=layer), float(value))
            for layer, value in enumerate(self.feed_forward)
        ]
        rows += [(localized(name), value) for name, value in self.others.items()]
        rows += [(localized("sum"), self.total), (localized("logit"), self.logit)]
        cells = [(name, decimal(value, "+.3f")) for name, value in rows]
        return [
            *self.maps(),
            Table(localized_each("term", "added to the logit"), cells, self.title),
        ]

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield the title, the maps and the table."""
        yield self.title
        yield ""
        yield from super().text(width)

    def figure(self) -> Figure:
        """Draw a map per attention, and bars of feed-forward layers and of the rest."""
        n_layers = len(self.feed_forward)
        names = [localized(name) for name in self.others]
        bars = [*self.others.values(), *self.feed_forward.tolist()]
        labels = [*names, *(f"FFN {layer}" for layer in range(n_layers))]
        limit = self._limit
        scale: Any = {"cmap": DIVERGING, "vmin": -limit, "vmax": limit}
        n_heads = next(iter(self.heads.values())).shape[1]
        figure, panels = new_figure(
            4.6 + len(self.heads) * max(2.2, 0.3 * n_heads),
            max(3.4, 0.2 * len(bars) + 1.2, 0.3 * n_layers + 1.6),
            ncols=len(self.heads) + 1,
            width_ratios=[*[max(2.2, 0.3 * n_heads)] * len(self.heads), 3.4],
        )
        for axes, (name, values) in zip(panels, self.heads.items(), strict=False):
            image = draw_by_head(axes, values, _said(name), **scale)
        panels[0].set_ylabel(localized("layer"))
        figure.colorbar(image, ax=list(panels[:-1]), label=localized("added to the logit"))
        colours = [ABOVE if value >= 0 else BELOW for value in bars]
        panels[-1].barh(range(len(bars)), bars, color=colours)
        panels[-1].set_yticks(range(len(bars)), labels, fontsize=7)
        panels[-1].invert_yaxis()
        panels[-1].set_xlabel(localized("added to the logit"))
        note = "All heads, feed-forward layers and other terms sum up to {total:.3f}."
        beyond = clipping_note(array(torch.cat([*self.heads.values()])), limit)
        caption(figure, self.title, localized(note, total=self.total), beyond)
        return figure


def _said(attention: str) -> str:
    return localized(attention.replace("_", "-"))


def contributions(
    trace: Trace, position: int, output: int | None = None, row: int = 0
) -> Contributions:
    """Split the logit of an output at a position into what was added to the residual stream."""
    model: Any = trace.model
    logits = trace["logits"][row, position].float()
    label = row_labels(trace, row, position + 1)[position]
    chosen = int(logits.argmax()) if label == IGNORE else label
    output = chosen if output is None else output
    terms = _Terms(trace, row, position)
    with torch.no_grad():
        terms.run(model.decoder)
    projection = model.output.projection
    direction = projection.weight[output].detach().double().cpu() * model.output.scale
    values = {name: float(vector @ direction) for name, vector in terms.vectors.items()}
    bias = 0.0 if projection.bias is None else float(projection.bias[output])
    n_layers = trace.model.config.n_decoder_layers
    heads = {
        name: torch.tensor(
            [
                [values[f"{name}.{layer}.{head}"] for head in range(trace.sizes["H"])]
                for layer in range(n_layers)
            ]
        )
        for name in ATTENTIONS
        if f"{name}.0.0" in values
    }
    others = {"input (embedding and positions)": values["input"]}
    others |= {name: values[name] for name in ("biases of attention", "shifts of norms")}
    others["bias of the output"] = bias
    feed_forward = torch.tensor([values[f"feed_forward.{layer}"] for layer in range(n_layers)])
    known = sum(float(x.sum()) for x in (*heads.values(), feed_forward)) + sum(others.values())
    others["remainder (rounding, changes)"] = float(logits[output]) - known
    return Contributions(
        trace.tokens("target", row)[position],
        position,
        label_name(trace, output, row, position),
        float(logits[output]),
        heads,
        feed_forward,
        others,
    )


class _Terms:
    """Vectors whose sum is the residual stream of one token, taken through every norm."""

    def __init__(self, trace: Trace, row: int, position: int) -> None:
        self.row, self.position = row, position
        keys = ["target.input", "decoder.*.heads", "decoder.*.feed_forward.output"]
        self.values = dict(trace.each(keys))
        self.vectors: dict[str, Tensor] = {}
        zeros = torch.zeros(trace.sizes["D"], dtype=torch.float64)
        for name in ("biases of attention", "shifts of norms"):
            self.vectors[name] = zeros.clone()

    def at(self, key: str) -> Tensor:
        """A quantity's vector of the token."""
        return self.values[key][self.row, self.position].detach().double().cpu()

    def run(self, stack: Any) -> None:
        """Follow the stream from the input to the last norm."""
        self.vectors["input"] = self.at("target.input")
        for layer in range(len(stack.windows)):
            block = stack.blocks[layer % len(stack.blocks)]
            for name in ("self_attention", "cross_attention", "feed_forward"):
                if hasattr(block, name):
                    self._sublayer(block, layer, name)
        if not isinstance(stack.norm, nn.Identity):
            self._normalise(stack.norm, list(self.vectors))

    def _sublayer(self, block: Any, layer: int, name: str) -> None:
        residual, at = getattr(block, f"{name}_residual"), f"decoder.{layer}.{name}"
        added = [f"feed_forward.{layer}"]
        biases = self.vectors["biases of attention"]
        if name == "feed_forward":
            self.vectors[added[0]] = self.at(f"{at}.output")
        else:
            added = self._heads(getattr(block, name), at, f"{name}.{layer}")
        if not isinstance(residual.output_norm, nn.Identity):
            own = self.vectors["biases of attention"] - biases  # of this sublayer alone
            self.vectors["own"] = own
            self._normalise(residual.output_norm, [*added, "own"])
            self.vectors["biases of attention"] = biases + self.vectors.pop("own")
        if not residual.pre:
            self._normalise(residual.norm, list(self.vectors))

    def _heads(self, attention: Any, at: str, name: str) -> list[str]:
        """Each head's part of Concat·W_O; the bias goes to the rest."""
        heads = self.values[f"{at}.heads"]
        vectors = heads[self.row, :, self.position].detach().double().cpu()  # (H, D/H)
        matrix = attention.output.weight.detach().double().cpu()
        names = []
        for head, vector in enumerate(vectors):
            part = slice(head * attention.d_head, (head + 1) * attention.d_head)
            self.vectors[f"{name}.{head}"] = matrix[:, part] @ vector
            names.append(f"{name}.{head}")
        if attention.output.bias is not None:
            bias = attention.output.bias.detach().double().cpu()
            self.vectors["biases of attention"] = self.vectors["biases of attention"] + bias
        return names

    def _normalise(self, norm: Any, names: list[str]) -> None:
        """Take vectors through a norm whose deviation is that of their sum."""
        total = torch.stack([self.vectors[name] for name in names]).sum(dim=0)
        centred = isinstance(norm, nn.LayerNorm)
        epsilon = (
            norm.epsilon
            if isinstance(norm, RMSNormPlusOne)
            else norm.eps or torch.finfo(torch.float32).eps
        )
        middle = total.mean() if centred else 0.0
        deviation = ((total - middle).pow(2).mean() + epsilon).sqrt()
        gain = gain_of(norm).detach().double().cpu()
        for name in names:
            vector = self.vectors[name]
            vector = vector - vector.mean() if centred else vector
            self.vectors[name] = gain * vector / deviation
        if getattr(norm, "bias", None) is not None:
            shift = norm.bias.detach().double().cpu()
            self.vectors["shifts of norms"] = self.vectors["shifts of norms"] + shift


def _answer(question: Question) -> Contributions:
    trace = the_trace(question)
    names = trace.tokens("target")
    return contributions(trace, token_position(question, names, len(names) - 1))


def _lack(question: Question) -> str | None:
    trace = the_trace(question)
    if isinstance(trace.model, Encoder):
        return (
            "An encoder has no W_out that reads its stream directly; look at its attribution or "
            "drift instead."
        )
    if trace.model.config.logit_cap:
        return (
            "This model caps its logits, so that they are no sum of parts; look at its "
            "attribution instead."
        )
    token_position(question, trace.tokens("target"), 0)
    return lacks_known_norms(question)


VIEW = View(
    "Contributions",
    "What each head and each layer adds to one logit (direct logit attribution, with the "
    "deviations of norms as they are in this pass). All terms sum up to the logit.",
    _answer,
    _lack,
)
