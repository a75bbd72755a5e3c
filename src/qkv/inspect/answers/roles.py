"""Roles of heads: who looks at the token before, at repetitions, at the first token, at its source.

Self-attentions are scored on random tokens that come twice, so that nothing but their role can
guide them; cross-attentions on the text, against the source token whose removal costs most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from rich.console import RenderableType
from torch import Tensor

from qkv.inspect.answers.answer import Answer, Question, View, the_trace
from qkv.inspect.answers.attention import own_kinds
from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.labels import wrapped
from qkv.inspect.draw.language import localized, localized_each
from qkv.inspect.draw.panels import draw_by_head, map_by_head
from qkv.inspect.draw.style import caption, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.inputs import Side
from qkv.inspect.trace.trace import Trace
from qkv.model import Encoder, EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_RANDOM = 16  # random tokens, which come twice
SEED = 0
BEST = 3  # heads of each role in the table
ROLES = {
    "previous": "looks at the token before",
    "next": "looks at the token after",
    "duplicate": "looks at the same token earlier",
    "induction": "looks at what came after the same token earlier",
    "sink": "looks at the first token",
    "alignment": "looks at the source token that the output comes from",
}
KIND_NAMES = {"encoder": "encoder", "masked": "decoder", "cross": "cross-attention"}


@dataclass(frozen=True)
class RoleMap:
    """Scores of the heads of one kind of attention in one role, (layers, heads)."""

    kind: str
    role: str
    scores: Tensor  # mean weight on the tokens that the role is about
    chance: float  # the same of a head that looks at all tokens alike

    @property
    def title(self) -> str:
        """The attention and its role in the current language."""
        names = localized(KIND_NAMES[self.kind]), localized(ROLES[self.role])
        return localized("{title}: {name}", title=names[0], name=names[1])


@dataclass(frozen=True)
class Roles(Answer):
    """A map of scores per role and kind of attention."""

    maps: tuple[RoleMap, ...]

    def parts(self) -> list[Table]:
        """The best heads of each role."""
        rows = []
        for found in self.maps:
            best = found.scores.flatten().topk(min(BEST, found.scores.numel()))
            width = found.scores.shape[1]
            heads = [
                f"{id // width}.{id % width} {value:.2f}"
                for value, id in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
            kind = localized(KIND_NAMES[found.kind])
            chance = f"{found.chance:.2f}"
            rows.append((kind, localized(ROLES[found.role]), "  ".join(heads), chance))
        head = localized_each("attention", "role", "best heads (layer.head)", "even head")
        return [Table(head, rows)]

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield the table, and a map per role and attention."""
        yield from super().text(width)
        for heat in self.heat_maps():
            yield ""
            yield from heat.text(width)

    def heat_maps(self) -> list[HeatMap]:
        """Layers down, heads across, all in one scale."""
        look = ("mean weight", self._most)
        return [map_by_head(found.scores, found.title, *look) for found in self.maps]

    @property
    def _most(self) -> float:
        """The value of the strongest colour in all maps."""
        return max(float(found.scores.max()) for found in self.maps)

    def figure(self) -> Figure:
        """Draw a panel per role: layers down, heads across; a row of panels per attention."""
        kinds = list(dict.fromkeys(found.kind for found in self.maps))
        rows = [[found for found in self.maps if found.kind == kind] for kind in kinds]
        across = max(map(len, rows))
        n_layers = max(len(found.scores) for found in self.maps)
        figure, grid = new_figure(
            2.5 * across + 0.8,
            len(rows) * max(1.6, min(5.0, 0.22 * n_layers + 0.9)) + 0.8,
            nrows=len(rows),
            ncols=across,
            squeeze=False,
        )
        for line, panels in zip(rows, grid, strict=True):
            for axes in panels[len(line) :]:
                axes.set_visible(False)
            for axes, found in zip(panels, line, strict=False):
                image = draw_by_head(axes, found.scores, "", vmin=0, vmax=self._most)
                axes.set_title(wrapped(found.title, 38), fontsize=7.5)
            panels[0].set_ylabel(localized("layer"))
        figure.colorbar(image, ax=grid, label=localized("mean weight"), shrink=0.8)
        caption(figure, localized("Which head does what"))
        return figure


def roles(trace: Trace) -> Roles:
    """Score the heads of every attention in the roles that it can have."""
    repeated, maps = _repeated(trace), list[RoleMap]()
    kinds = own_kinds(trace).items()
    patterns = {name: kind.replace(".", ".*.") + ".weights" for name, kind in kinds}
    cross = patterns.pop("cross", None)
    weights = _weights(repeated, list(patterns.values()))
    for name, pattern in patterns.items():
        layers = [weights[key] for key in repeated.names(pattern)]
        causal = getattr(trace.model, pattern.partition(".")[0]).causal
        maps += _self_roles(layers, name, layers[0].shape[1], causal)
    if cross is not None:
        maps.append(_alignment(trace, cross))
    return Roles(tuple(maps))


def _repeated(trace: Trace) -> Trace:
    """A pass over random tokens that come twice."""
    config, generator = trace.model.config, torch.Generator().manual_seed(SEED)
    size, sides = min(N_RANDOM, (config.max_length - 1) // 2), dict[str, Any]()
    for name, given in trace.inputs.sides.items():
        own = config.source_vocab_size if name == "source" else 0
        vocabulary = own or config.vocab_size
        low = min(100, vocabulary // 2)  # the first ids are often special
        ids = torch.randperm(vocabulary - low, generator=generator)[:size] + low
        tokens = torch.cat([given.tokens[0, :1], *[ids.to(given.tokens)] * 2])[None]
        sides[name] = Side(tokens, (tuple(map(str, tokens[0].tolist())),))
    segments = None
    if trace.inputs.segments is not None:
        segments = torch.zeros_like(sides["source"].tokens)
    inputs = replace(trace.inputs, **sides, labels=None, segments=segments)
    return Trace(trace.model, inputs, trace.edits)


def _self_roles(weights: list[Tensor], name: str, length: int, causal: bool) -> Iterator[RoleMap]:
    """Roles of a self-attention on tokens that come twice: first, a₁ … aₙ, a₁ … aₙ."""
    size = (length - 1) // 2
    second = torch.arange(size + 1, length)  # queries that have come before
    every = torch.arange(2, length)
    targets = {"previous": (every, every - 1)}
    if not causal:
        inner = torch.arange(1, length - 1)
        targets["next"] = (inner, inner + 1)
    targets["duplicate"] = (second, second - size)
    if causal:
        targets["induction"] = (second, second - size + 1)
    targets["sink"] = (every, torch.zeros_like(every))
    for role, (queries, looked_at) in targets.items():
        scores = torch.stack([x[:, queries, looked_at].mean(dim=1) for x in weights])
        seen = (queries + 1).float() if causal else torch.full(queries.shape, float(length))
        yield RoleMap(name, role, scores, float((1 / seen).mean()))


def _alignment(trace: Trace, pattern: str) -> RoleMap:
    """Mean weight of cross-attentions on the source token whose removal costs an output most."""
    truth = trace.attribution(method="removal").scores["source"].argmax(dim=1)
    rows = torch.arange(len(truth))
    weights = _weights(trace, [pattern])
    scores = torch.stack([x[:, rows, truth].mean(dim=1) for x in weights.values()])
    return RoleMap("cross", "alignment", scores, 1 / len(trace.tokens("source")))


def _weights(trace: Trace, patterns: list[str]) -> dict[str, Tensor]:
    """Attention weights of the first row by key, each (H, T, S)."""
    return {key: x[0].detach().float().cpu() for key, x in trace.each(patterns)}


def _lack(question: Question) -> str | None:
    trace = the_trace(question)
    if isinstance(trace.model, Encoder) and trace.model.config.patch_size:
        return "This model reads images, so its heads have no roles among tokens; see attention."
    if trace.model.config.max_length < 9:
        return "This model's context is too short to repeat tokens in; see attention."
    if isinstance(trace.model, EncoderDecoder) and trace.inputs.n_rows > 1 and trace.edits:
        return "Roles of a changed pass are shown of one text at a time; give one --source."
    return None


VIEW = View(
    "Roles of heads",
    "A score for each head (layers down, heads across): its mean weight on the token before, on a "
    "repeated token, on what followed it (induction), on the first token (sink), all on random "
    "tokens that come twice; and of cross-attention, on the source token that an output comes "
    "from.",
    lambda question: roles(the_trace(question)),
    _lack,
)
