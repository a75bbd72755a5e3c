"""One word in several texts: how far its vectors part from layer to layer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.answers.answer import Answer, Question, View, bare, the_trace
from qkv.inspect.answers.lens import (
    layer_names,
    localized_layers,
    name_layers,
    stack_of,
    stream_keys,
)
from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.labels import clipped
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.style import caption, legend, line_style, new_figure
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.inputs import SIDES
from qkv.inspect.trace.trace import Trace
from qkv.model import EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LINES = 10  # pairs of texts with a line of their own


@dataclass(frozen=True)
class WordInContext(Answer):
    """Cosines between the vectors of one word in several texts, layer by layer."""

    word: str
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]  # positions of the word's tokens in each text
    layers: tuple[str, ...]
    cosine: Tensor  # (layers, texts, texts)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of texts."""
        return list(combinations(range(len(self.texts)), 2))

    def parts(self) -> list[HeatMap | Table]:
        """The texts, and a row of cosines per pair."""
        texts = Table(
            ("", localized("text")), [(str(n), text) for n, text in enumerate(self.texts, 1)]
        )
        values = torch.stack([self.cosine[:, a, b] for a, b in self.pairs])
        names = [f"{a + 1}\u00a0–\u00a0{b + 1}" for a, b in self.pairs]
        layers = [name.replace(" ", "\u00a0") for name in localized_layers(self.layers)]
        title = localized("Cosine between the vectors of {word}", word=self.word)
        heat = HeatMap(values, names, layers, title, value="cosine", down="texts", across="after")
        return [texts, heat]

    def figure(self) -> Figure:
        """Draw a line per pair of texts over the layers."""
        figure, axes = new_figure(8.4, 4.0)
        every = name_layers(axes, self.layers)
        for number, (a, b) in enumerate(self.pairs[:MAX_LINES]):
            label = f"{clipped(self.texts[a], 40)} – {clipped(self.texts[b], 40)}"
            values = self.cosine[:, a, b].tolist()
            axes.plot(values, label=label, markevery=every, **line_style(number))
        axes.set(ylabel=localized("cosine"))
        legend(figure, loc="outside lower center", ncols=1)
        left_out = len(self.pairs) - MAX_LINES
        note = localized("{count} more pairs are in the table.", count=left_out)
        title = localized("How alike {word} is in two texts, layer by layer", word=self.word)
        caption(figure, title, note if left_out > 0 else "")
        return figure


def word_in_context(trace: Trace, word: str) -> WordInContext:
    """Compare the vectors of a word in the texts of a trace, each the mean over its tokens."""
    stack = "encoder" if isinstance(trace.model, EncoderDecoder) else stack_of(trace, None)
    rows = range(trace.inputs.n_rows)
    names = [trace.tokens(SIDES[stack], row) for row in rows]
    places = [find_word(own, word) for own in names]
    keys = stream_keys(trace, stack)
    cosines = []
    for _, value in trace.each(keys):
        stream = value.detach().float().cpu()
        vectors = torch.stack([stream[row, places[row]].mean(dim=0) for row in rows])
        unit = F.normalize(vectors, dim=-1)
        cosines.append(unit @ unit.T)
    texts, found = tuple(map(_text, names)), tuple(map(tuple, places))
    return WordInContext(word, texts, found, tuple(layer_names(keys)), torch.stack(cosines))


def find_word(names: list[str], word: str) -> list[int]:
    """Positions of the tokens that spell a word; of several places, the last."""
    joined, owners = "", []
    for position, name in enumerate(names):
        character, _, part = name.partition("\u00a0")
        spelt = "" if part and not part.startswith("1/") else bare(character)
        joined += spelt
        owners += [position] * len(spelt)
    start = joined.rfind(bare(word))
    if start < 0 or not bare(word):
        raise UserError(f"The text {_text(names)!r} has no {word!r}; give texts that all have it.")
    return sorted(set(owners[start : start + len(bare(word))]))


def _text(names: list[str]) -> str:
    """A text from its tokens, special ones left out."""
    spelt = []
    for name in names:
        character, _, part = name.partition("\u00a0")
        if name.startswith(("<", "[")) or (part and not part.startswith("1/")):
            continue
        spelt.append(character.removeprefix("##") if name.startswith("##") else f"\0{character}")
    marked = "▁" in "".join(spelt)
    text = "".join(spelt).replace("\0", "" if marked else " ").replace("▁", " ").strip()
    return re.sub(r"(?<=[\u3000-\u9fff]) (?=[\u3000-\u9fff])", "", text)  # Chinese has no spaces


def _answer(question: Question) -> WordInContext:
    return word_in_context(the_trace(question), question.words[0])


def _lack(question: Question) -> str | None:
    trace = the_trace(question)
    if trace.inputs.n_rows < 2 or not question.words:
        return (
            "The word view compares one word in several texts; give it with --word, and at least "
            "two texts with --source."
        )
    side = "target" if trace.inputs.source is None else "source"
    for row in range(trace.inputs.n_rows):
        find_word(trace.tokens(side, row), question.words[0])
    return None


VIEW = View(
    "One word in several texts",
    "The cosine between a word's vectors in two texts after each layer: near 1 at the input, where "
    "only its position may differ; the more its context counts, the smaller.",
    _answer,
    _lack,
)
