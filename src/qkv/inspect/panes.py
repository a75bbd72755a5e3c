"""A pane: one view of a model, ready to be shown as a figure, as HTML, as numbers or as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from qkv.inspect.maps import shaded
from qkv.inspect.save import svg_fragment
from qkv.model import Model
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.curves import Record
    from qkv.inspect.trace import Trace

IN_TERMINAL = 32  # tokens of an axis in a terminal; of more, the last ones are shown
IN_PAGE = 20_000  # cells of tables in a page; larger maps are pictures


@dataclass(frozen=True)
class Vocabulary:
    """Tokens with the table of their vectors, (V, E)."""

    tokenizer: Tokenizer
    table: Tensor


@dataclass(frozen=True)
class Subject:
    """What is looked at: a model, one pass of it, the logs of runs, each where it is there."""

    model: Model | None = None
    trace: Trace | None = None
    vocabularies: Sequence[Vocabulary] = ()  # the source's first
    runs: Mapping[str, Sequence[Record]] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """Which part of it; what is empty is left to the view."""

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    attention: str = ""  # encoder, masked or cross
    beams: int | None = None
    top: int = 5
    words: tuple[str, ...] = ()


class Pane(ABC):
    """One view; nothing is computed before somebody asks for a form of it."""

    title: ClassVar[str]
    about: ClassVar[str]  # a sentence that says what one sees

    def __init__(self, subject: Subject, wish: Wish) -> None:
        self.subject, self.wish = subject, wish
        self.remarks: list[str] = []  # what was left out, for the person who asked

    @classmethod
    def lack(cls, subject: Subject, wish: Wish) -> str | None:
        """Why this view cannot be had, in a sentence; None where it can."""
        return None

    def check(self) -> None:
        """Say what is wrong with what is asked for, before anything is shown."""
        return

    @abstractmethod
    def draw(self, viewer_fonts: bool = False) -> Figure:
        """The view as a figure."""

    @abstractmethod
    def numbers(self) -> Any:
        """The view as what JSON knows."""

    @abstractmethod
    def text(self, width: int) -> Iterator[RenderableType]:
        """The view for a terminal of so many cells."""

    def html(self) -> str:
        """The view as a piece of a page."""
        return svg_fragment(self.draw(viewer_fonts=True))


class PassPane(Pane):
    """A view of one pass."""

    @property
    def trace(self) -> Trace:
        """The pass."""
        assert self.subject.trace is not None
        return self.subject.trace


def map_text(
    values: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    width: int,
    title: str = "",
    allowed: Tensor | None = None,
) -> Iterator[RenderableType]:
    """A map in shaded blocks under its title; of a long text, its end."""
    most = IN_TERMINAL
    if max(len(rows), len(columns)) > most:
        title = f"{title} (the last {most} tokens)".strip()
    if title:
        yield Text(title, style="italic")
    part = slice(-most, None)
    seen = None if allowed is None else allowed[part, part]
    yield shaded(values[part, part], rows[part], columns[part], width, seen)
    yield ""


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table for a terminal."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # brackets in tokens are not rich's markup
    return table
