"""Embeddings: the nearest tokens by cosine, and words on their principal plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len

from qkv.errors import UserError
from qkv.inspect.answers.answer import Answer, Question, View, Vocabulary, the_trace
from qkv.inspect.draw.labels import clipped, units, visible
from qkv.inspect.draw.language import localized, localized_each
from qkv.inspect.draw.style import (
    INK,
    Numbers,
    array,
    caption,
    legend,
    line_style,
    new_figure,
    styled,
)
from qkv.inspect.draw.table import Table
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_WORDS = 8  # of a text, if no words are named
WIDTH, HEIGHT = 8.0, 6.0  # inches of the plane
TYPE = 8.0  # points
FAR = 3.0  # times the median distance from the middle, above which a vector is an outlier
AROUND = ((1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))  # best first
Box = tuple[float, float, float, float]  # left, bottom, right, top in points


@dataclass(frozen=True)
class Neighbours(Answer):
    """Tokens with those whose vectors point most nearly the same way."""

    vocabulary: Vocabulary
    ids: list[int]
    top: int

    @cached_property
    def vectors(self) -> Numbers:
        """The embedding table."""
        return array(self.vocabulary.table)

    @cached_property
    def nearest(self) -> dict[int, list[tuple[int, float]]]:
        """Ids and cosines of each token's neighbours."""
        return {id: nearest(self.vectors, id, self.top) for id in self.ids}

    def _name(self, id: int) -> str:
        return self.vocabulary.tokenizer.sequence_tokens([id])[0]

    def figure(self) -> Figure:
        """Draw tokens and neighbours on their principal plane, a colour per token."""
        groups: dict[int, str] = {}
        for id, near in self.nearest.items():
            group = groups[id] = localized("near {word}", word=visible(self._name(id)))
            for other, _ in near:
                groups.setdefault(other, group)
        names = [self._name(id) for id in groups]
        title = localized("Words and their nearest neighbours in the embedding table")
        return draw_plane(self.vectors[list(groups)], names, list(groups.values()), title)

    def numbers(self) -> Any:
        """Return ids, names and cosines."""
        return [
            {
                "id": id,
                "word": self._name(id),
                "nearest": [
                    {"id": other, "word": self._name(other), "cosine": cosine}
                    for other, cosine in near
                ],
            }
            for id, near in self.nearest.items()
        ]

    def parts(self) -> list[Table]:
        """A row per token."""
        rows = [
            (
                visible(self._name(id)),
                units(((self._name(other), cosine) for other, cosine in near), ".3f"),
            )
            for id, near in self.nearest.items()
        ]
        return [Table(localized_each("word", "nearest, by cosine"), rows)]


def vocabularies(task: Any) -> list[Vocabulary]:
    """The source's embeddings of a loaded model, and the target's if it has its own."""
    from qkv.tasks import ImageClassifier, Translator

    if isinstance(task, ImageClassifier):
        return []
    if isinstance(task, Translator):
        tokenizers, model = task.tokenizers, task.model
        pairs = [(tokenizers.source, model.source_embedding)]
        if model.target_embedding is not model.source_embedding:
            pairs.append((tokenizers.target, model.target_embedding))
        return [Vocabulary(tokenizer, embedding.table.weight) for tokenizer, embedding in pairs]
    return [Vocabulary(task.tokenizer, task.model.embedding.table.weight)]


def nearest(vectors: Any, token_id: int, k: int = 10) -> list[tuple[int, float]]:
    """Find the k rows of an embedding table with the highest cosine to one row."""
    values = array(vectors)
    sizes = np.linalg.norm(values, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = values @ values[token_id] / (sizes * sizes[token_id])
    cosines = np.nan_to_num(cosines, nan=0.0)  # a row of zeros has no direction
    order = [int(id) for id in np.argsort(-cosines, kind="stable") if id != token_id]
    return [(id, float(cosines[id])) for id in order[:k]]


def principal_plane(vectors: Any, deciding: Any = slice(None)) -> tuple[Numbers, Numbers]:
    """Project vectors (n, D) to where the deciding ones vary most, (n, 2), and the axes' shares."""
    values = array(vectors)
    middle = values[deciding].mean(axis=0)
    _, sizes, right = np.linalg.svd(values[deciding] - middle, full_matrices=False)
    # The sign of a singular vector is arbitrary: make its largest component positive.
    strongest = np.take_along_axis(right, np.abs(right).argmax(axis=1)[:, None], axis=1)[:, 0]
    points = (values - middle) @ (right * np.where(strongest < 0, -1.0, 1.0)[:, None]).T
    shares = sizes**2 / ((sizes**2).sum() or 1.0)
    room = max(0, 2 - points.shape[1])
    return np.pad(points, ((0, 0), (0, room)))[:, :2], np.pad(shares, (0, room))[:2]


def outliers(vectors: Any) -> Any:
    """Which vectors are much farther from the middle than most, (n,) bool."""
    values = array(vectors)
    distances = np.linalg.norm(values - np.median(values, axis=0), axis=1)
    return distances > FAR * np.median(distances)


def draw_plane(vectors: Any, labels: Sequence[str], groups: Sequence[str], title: str) -> Figure:
    """Draw vectors (n, D) as labelled points on their principal plane, a colour per group."""
    far = outliers(vectors)
    points, shares = principal_plane(vectors, ~far)
    if not len(points) == len(labels) == len(groups):
        raise ValueError(f"{len(points)} vectors, {len(labels)} labels, {len(groups)} groups")
    with styled():
        figure, axes = new_figure(WIDTH + 0.8, HEIGHT + 0.9)
        points = _scatter(axes, points, groups, far)
        left_out = _label(axes, points, [clipped(visible(label), 16) for label in labels])
        about = "{name} principal component ({share:.0%} of the variance)"
        names = [
            localized(about, name=localized(name), share=share)
            for name, share in zip(("first", "second"), shares, strict=True)
        ]
        axes.set(xlabel=names[0], ylabel=names[1])
        note = "{count} labels are left out where they would cover others."
        beyond = "{count} vectors are far away from all others: a ring at the edge marks them."
        notes = [
            localized(text, count=count)
            for text, count in ((note, left_out), (beyond, int(far.sum())))
            if count
        ]
        caption(figure, title, *notes)
    return figure


def _scatter(axes: Axes, points: Numbers, groups: Sequence[str], far: Any) -> Numbers:
    """Draw the points; outliers are ringed at the edge. Returns where the points are."""
    near = points[~far]
    margin = np.ptp(near, axis=0) * 0.08 + 1e-9
    low, high = near.min(axis=0) - margin, near.max(axis=0) + margin
    points = np.clip(points, low + margin * 0.3, high - margin * 0.3)
    for number, group in enumerate(dict.fromkeys(groups)):
        own = points[[name == group for name in groups]]
        axes.scatter(own[:, 0], own[:, 1], s=22, label=group, **line_style(number))
    ring: Any = {"s": 90, "facecolors": "none", "edgecolors": INK, "linewidths": 1.0}
    if far.any():
        axes.scatter(points[far, 0], points[far, 1], **ring)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    legend(axes.figure, loc="outside right upper")  # beside the plane, where it covers no label
    return points


def _label(axes: Axes, points: Numbers, names: list[str]) -> int:
    """Write each label where it covers least; returns how many did not fit."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    scale = np.array([WIDTH * 72 / (right - left), HEIGHT * 72 / (top - bottom)])
    spots = (points - np.array([left, bottom])) * scale  # in points of type
    taken: list[Box] = [(x - 3, y - 3, x + 3, y + 3) for x, y in spots]
    left_out = 0
    for spot, point, name in zip(spots, points, names, strict=True):
        wide, tall = cell_len(name) * TYPE * 0.3, TYPE * 0.55  # half a label
        choices = [
            (x * (wide + away), y * (tall + away)) for away in (5.0, 11.0) for x, y in AROUND
        ]
        middles = [(spot[0] + x, spot[1] + y) for x, y in choices]
        boxes: list[Box] = [(x - wide, y - tall, x + wide, y + tall) for x, y in middles]
        costs = [sum(_overlap(box, other) for other in taken) for box in boxes]
        best = costs.index(min(costs))
        if costs[best] > 0.35 * 4 * wide * tall:
            left_out += 1
            continue
        taken.append(boxes[best])
        axes.annotate(
            name,
            point,
            choices[best],
            textcoords="offset points",
            fontsize=TYPE,
            parse_math=False,
            ha="center",
            va="center",
            annotation_clip=False,
        )
    return left_out


def _overlap(a: Box, b: Box) -> float:
    """Area that two boxes share."""
    across = min(a[2], b[2]) - max(a[0], b[0])
    up = min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, across) * max(0.0, up)


def _find_words(question: Question) -> tuple[Vocabulary, list[int]]:
    """The first vocabulary in which every named word is one token, and their ids."""
    vocabularies, words = question.vocabularies, question.words
    for vocabulary in vocabularies:
        ids = [_one_token(vocabulary.tokenizer, word) for word in words]
        if None not in ids:
            return vocabulary, [id for id in ids if id is not None]
    tokenizer = vocabularies[0].tokenizer
    word = next(word for word in words if _one_token(vocabularies[-1].tokenizer, word) is None)
    pieces = " ".join(tokenizer.tokens(tokenizer.encode(word)))
    raise UserError(
        f"{word!r} is not one token of this model but {pieces!r}; name a word that is in its "
        "vocabulary."
    )


def _one_token(tokenizer: Tokenizer, word: str) -> int | None:
    """The id of a word that is one token, at a text's start or inside it."""
    spelt = [tokenizer.encode(f" {word}"), tokenizer.encode(word)]
    return next((ids[0] for ids in spelt if len(ids) == 1 and ids[0] != tokenizer.unk_id), None)


def _answer(question: Question) -> Neighbours:
    """The neighbours of the named words, or of the text's own tokens."""
    if question.words:
        return Neighbours(*_find_words(question), question.top)
    side = next(iter(the_trace(question).inputs.sides.values()))
    vocabulary = question.vocabularies[0]
    ids = list(dict.fromkeys(side.tokens[0].tolist()))
    named = zip(ids, vocabulary.tokenizer.tokens(ids), strict=True)
    plain = [id for id, name in named if not name.startswith(("<", "["))]
    return Neighbours(vocabulary, (plain or ids)[:MAX_WORDS], question.top)


def _lack(question: Question) -> str | None:
    if not question.vocabularies:
        return "This model reads images, so it has no embeddings of words; choose another view."
    if not question.words and question.trace is None:
        return "The embeddings view needs a text, or a word to find the neighbours of; give one."
    _find_words(question)
    return None


VIEW = View(
    "Embeddings",
    "The tokens whose vectors in the embedding table point most nearly the same way.",
    _answer,
    _lack,
    needs_text=False,
)
