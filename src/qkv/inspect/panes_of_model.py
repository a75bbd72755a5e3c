"""The panes that need no text: the table of positions, embeddings, and the curves of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect import pages
from qkv.inspect.curves import Record, draw_curves
from qkv.inspect.fonts import visible
from qkv.inspect.maps import shaded
from qkv.inspect.neighbours import draw_embedding, nearest
from qkv.inspect.panes import Pane, Subject, Vocabulary, Wish, table_text
from qkv.inspect.positions import dot_products, draw_positions
from qkv.inspect.save import svg_fragment
from qkv.inspect.style import Numbers, array
from qkv.model import Model
from qkv.model.positions import Learned, Sinusoidal
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POSITIONS = 128  # rows of the table that are shown
WORDS = 8  # of a text, where no words are named
POINTS = 12  # rows of a run's log in a terminal
INSTEAD = {
    "rotary": "turns queries and keys by angles",
    "relative": "adds a bias for each distance to the scores",
    "disentangled": "scores distances with vectors of their own",
    "none": "knows order from its mask alone",
}


class PositionsPane(Pane):
    """The table that is added to embeddings."""

    title = "Positions"
    about = "The table that is added to embeddings, and how much its rows are like each other."

    @classmethod
    def lack(cls, subject: Subject, wish: Wish) -> str | None:
        """Most newer models have none."""
        assert subject.model is not None
        if position_table(subject.model) is not None:
            return None
        scheme = subject.model.config.positions
        how = INSTEAD.get(scheme, "adds nothing to embeddings")
        return (
            f"This model has no table of positions to show, for it {how} (positions = {scheme!r}); "
            "choose another view."
        )

    @cached_property
    def table(self) -> Tensor:
        """The first rows."""
        assert self.subject.model is not None
        found = position_table(self.subject.model)
        assert found is not None
        if len(found) > POSITIONS:
            self.remarks.append(f"positions: the first {POSITIONS} of {len(found):,}")
        return found[:POSITIONS].detach().float().cpu()

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """Two heat maps."""
        return draw_positions(self.table, "Where a token stands: near positions have like vectors")

    def numbers(self) -> Any:
        """The table, and the dot products of its rows."""
        return {"table": self.table.tolist(), "dot_products": dot_products(self.table).tolist()}

    def text(self, width: int) -> Iterator[RenderableType]:
        """Cosines of as many positions as fit; a row may be so long that it hides all products."""
        fit = max(4, min(len(self.table), (width - 4) // 2, 32))
        names = [str(place) for place in range(fit)]
        yield Text(f"cosines of the first {fit} positions", style="italic")
        yield shaded(dot_products(F.normalize(self.table[:fit])), names, names, width)
        yield ""


def position_table(model: Model) -> Tensor | None:
    """The table of positions, (n, E), the encoder's where there are two."""
    stack: Any = getattr(model, "encoder", None) or getattr(model, "decoder", None)
    scheme = stack.positions
    if isinstance(scheme, Learned):
        return scheme.table.weight
    return scheme.table if isinstance(scheme, Sinusoidal) else None


class EmbeddingsPane(Pane):
    """Whose vectors point the same way."""

    title = "Embeddings"
    about = "The tokens whose vectors in the embedding table point most nearly the same way."

    @classmethod
    def lack(cls, subject: Subject, wish: Wish) -> str | None:
        """It needs words."""
        if not subject.vocabularies:
            return "This model reads images, so it has no embeddings of words; choose another view."
        if not wish.words and subject.trace is None:
            return "Name a word whose neighbours are looked for, as in --word cat."
        return None

    def check(self) -> None:
        """Every word must be a token."""
        find_words(self.subject.vocabularies, self.wish.words)

    @cached_property
    def place(self) -> tuple[Vocabulary, list[int]]:
        """The vocabulary that has the words, and their ids."""
        if self.wish.words:
            return find_words(self.subject.vocabularies, self.wish.words)
        trace = self.subject.trace
        assert trace is not None
        side = trace.reading.source or trace.reading.target
        assert side is not None
        ids = dict.fromkeys(side.tokens[0].tolist())
        vocabulary = self.subject.vocabularies[0]
        named = zip(ids, vocabulary.tokenizer.tokens(list(ids)), strict=True)
        plain = [id for id, name in named if not name.startswith(("<", "["))]
        return vocabulary, (plain or list(ids))[:WORDS]

    @cached_property
    def vectors(self) -> Numbers:
        """The table."""
        return array(self.place[0].table)

    @cached_property
    def found(self) -> list[tuple[int, list[tuple[int, float]]]]:
        """Each word with its neighbours and their cosines."""
        return [(id, nearest(self.vectors, id, self.wish.top)) for id in self.place[1]]

    def _names(self, ids: Sequence[int]) -> list[str]:
        return self.place[0].tokenizer.tokens(ids)

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """Words and neighbours on their principal plane, a colour a word."""
        groups: dict[int, str] = {}
        for id, near in self.found:
            (name,) = self._names([id])
            groups[id] = f"near {visible(name)}"
            for other, _ in near:
                groups.setdefault(other, f"near {visible(name)}")
        ids = list(groups)
        title = "Words and their nearest neighbours in the embedding table"
        return draw_embedding(
            self.vectors[ids],
            self._names(ids),
            list(groups.values()),
            title,
            viewer_fonts=viewer_fonts,
        )

    def _rows(self) -> list[tuple[str, str]]:
        def named(id: int) -> str:
            return visible(self._names([id])[0])

        return [
            (named(id), "  ".join(f"{named(other)} {cosine:.3f}" for other, cosine in near))
            for id, near in self.found
        ]

    def html(self) -> str:
        """The plane, and the table."""
        return svg_fragment(self.draw(viewer_fonts=True)) + pages.table(
            ("word", "nearest"), self._rows()
        )

    def numbers(self) -> Any:
        """Ids, names and cosines."""
        return [
            {
                "id": id,
                "word": self._names([id])[0],
                "nearest": [
                    {"id": other, "word": self._names([other])[0], "cosine": cosine}
                    for other, cosine in near
                ],
            }
            for id, near in self.found
        ]

    def text(self, width: int) -> Iterator[RenderableType]:
        """A row a word."""
        yield table_text(("word", "nearest, by cosine"), self._rows())


def find_words(
    vocabularies: Sequence[Vocabulary], words: Sequence[str]
) -> tuple[Vocabulary, list[int]]:
    """The first vocabulary in which every word is one token, at a text's start or inside it."""
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
    spelt = [tokenizer.encode(f" {word}"), tokenizer.encode(word)]
    return next((ids[0] for ids in spelt if len(ids) == 1 and ids[0] != tokenizer.unk_id), None)


class CurvesPane(Pane):
    """How training went."""

    title = "Training curves"
    about = "Loss, learning rate, speed and scores over the steps of training."

    @classmethod
    def lack(cls, subject: Subject, wish: Wish) -> str | None:
        """It needs a log."""
        if subject.runs:
            return None
        return "There is no log.jsonl of a training run to draw; give the folder of a run."

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """A panel a quantity."""
        return draw_curves(self.subject.runs, viewer_fonts=viewer_fonts)

    def numbers(self) -> Any:
        """The records of each run."""
        return {name: list(records) for name, records in self.subject.runs.items()}

    def text(self, width: int) -> Iterator[RenderableType]:
        """Some rows of each log, those with held-out losses where there are any."""
        for name, records in self.subject.runs.items():
            yield Text(name, style="italic")
            rows = _thinned(records)
            keys = list(dict.fromkeys(key for row in rows for key in row))
            yield table_text(
                [key.replace("_", " ") for key in keys],
                [[_number(row.get(key)) for key in keys] for row in rows],
            )


def _thinned(records: Sequence[Record]) -> list[Record]:
    """The last record, and others evenly before it."""
    chosen = [record for record in records if "valid_loss" in record] or list(records)
    every = max(1, -(-len(chosen) // POINTS))
    return chosen[::-1][::every][::-1]


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
