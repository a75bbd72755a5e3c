"""What a view is: a question about a model in, an answer that shows itself out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from rich.console import Console, RenderableType
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.draw.heat_map import HeatMap
from qkv.inspect.draw.page import piece
from qkv.inspect.draw.style import styled
from qkv.inspect.draw.table import Table
from qkv.inspect.trace.quantities import NORMS
from qkv.inspect.trace.trace import Trace
from qkv.model import Model
from qkv.text import Tokenizer
from qkv.text.tokenizer import USUAL_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CELLS = 20_000  # of maps in a page; larger ones become pictures
Record = dict[str, Any]  # a line of a run's log.jsonl


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with the embedding table of its tokens, (V, E)."""

    tokenizer: Tokenizer
    table: Tensor


@dataclass(frozen=True)
class Question:
    """What to look at, each part if there is one, and the options of the views."""

    model: Model | None = None
    trace: Trace | None = None
    vocabularies: Sequence[Vocabulary] = ()  # the source's first
    runs: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    smoothing: Mapping[str, float] = field(default_factory=dict)  # of the runs' training labels
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    attention: str = ""  # encoder, masked or cross
    token: str = ""  # the position or the name of the token that a view is about
    beams: int | None = None
    top: int = 5
    words: tuple[str, ...] = ()
    name: str = ""  # of the model
    other: Trace | None = None  # the same text in a second model
    other_name: str = ""
    remark: Callable[[str], None] = lambda text: None  # told what is left out

    @property
    def tokens(self) -> dict[str, list[str]]:
        """Tokens that were read, by side."""
        if self.trace is None:
            return {}
        return {side: self.trace.tokens(side) for side in self.trace.inputs.sides}


class Answer:
    """A result that shows itself as a figure, as HTML, as numbers and in a terminal."""

    def parts(self) -> Sequence[HeatMap | Table]:
        """Heat maps and tables that HTML and terminal show."""
        return ()

    def draw(self) -> Figure:
        """Draw a matplotlib figure in the package's style."""
        with styled():
            return self.figure()

    def figure(self) -> Figure:
        """Draw the figure, by default the first heat map."""
        return next(part for part in self.parts() if isinstance(part, HeatMap)).draw()

    def numbers(self) -> Any:
        """Return what JSON can hold, by default every field."""
        return _plain(self)

    def text(self, width: int) -> Iterator[RenderableType]:
        """Yield parts for a terminal with `width` cells per line."""
        for part in self.parts():
            yield from part.text(width)

    def html(self) -> Markup:
        """Return a part of a page: the figure, and the tables."""
        from qkv.inspect.draw.figure import svg_html

        tables = [part.html() for part in self.parts() if isinstance(part, Table)]
        return svg_html(self.draw()) + Markup().join(tables)

    def _repr_html_(self) -> str:
        return str(piece("fragment", self.html()))

    def __str__(self) -> str:
        """Write what `qkv inspect` prints, so that `print` shows it in a terminal."""
        console = Console(highlight=False, color_system=None)
        with console.capture() as captured:
            for part in self.text(console.width):
                console.print(part, markup=False)
        return captured.get().rstrip("\n")


class MapAnswer(Answer):
    """An answer made of heat maps, which HTML shows as tables unless they are too large."""

    def html(self) -> Markup:
        """Return the maps as tables, or the figure if they have too many cells."""
        maps = [part for part in self.parts() if isinstance(part, HeatMap)]
        if sum(part.cells.size for part in maps) > MAX_CELLS:
            return super().html()
        return Markup().join(part.html() for part in maps)


def _plain(value: Any) -> Any:
    """Convert dataclasses, tensors, sequences and mappings to what JSON can hold."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return list(map(_plain, value))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    return value


@dataclass(frozen=True)
class View:
    """A view of `qkv inspect`: its heading, and how its question is answered."""

    title: str
    about: str  # a sentence that says what it shows
    answer: Callable[[Question], Answer]
    # Why a model has no such view (None: it has); raises UserError for options that do not fit.
    lack: Callable[[Question], str | None] = lambda question: None
    needs_text: bool = True


def lacks_probabilities(question: Question) -> str | None:
    """Reason why a model without probabilities cannot show its predictions."""
    if "probabilities" in the_trace(question):
        return None
    return "This model gives no probabilities; look at its flow, attention or drift instead."


def lacks_known_norms(question: Question) -> str | None:
    """Reason why a model with a norm of somebody's own is not taken apart."""
    norm = the_trace(question).model.config.norm
    if norm in NORMS:
        return None
    return f"Of a norm of the kind {norm!r} no steps are known; look at the model's flow instead."


def token_position(question: Question, names: Sequence[str], default: int) -> int:
    """The position of the token that a question names by itself or by its number."""
    asked = question.token
    if not asked:
        return default
    plain = [bare(name) for name in names]
    if bare(asked) in plain:
        return plain.index(bare(asked))
    if not asked.removeprefix("-").isdigit():
        raise UserError(f"The text has no token {asked!r}; it has {' '.join(names)}.")
    if not -len(names) <= int(asked) < len(names):
        raise UserError(f"There is no token {asked}; the text has {len(names)}, from 0 on.")
    return int(asked) % len(names)


def bare(name: str) -> str:
    """A token's name without marks of spaces and of continued words, in lower case.

    A gap has one name, however a text or a tokenizer writes it.
    """
    plain = name.replace("▁", "").removeprefix("##").strip()
    return "<mask>" if plain in USUAL_NAMES["mask"] else plain.casefold()


def the_trace(question: Question) -> Trace:
    """The trace of a question about a text."""
    assert question.trace is not None
    return question.trace
