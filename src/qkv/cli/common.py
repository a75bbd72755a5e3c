"""What the commands have in common: lines in, one line out, a bar, the right kind of model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qkv.config import Recipe


def read_stdin() -> list[str]:
    """The lines of standard input; bytes that are not UTF-8 are a mistake that is named."""
    from qkv.data.files import lines_in

    return list(lines_in(sys.stdin.buffer, "standard input"))


def given_lines(text: list[str] | None, path: Path | None) -> list[str]:
    """Texts from the command line, from a file, or else from standard input."""
    from qkv.data import read_lines

    if text and path:
        raise UserError("Texts are given both as arguments and as --input; give one of them.")
    if path:
        return read_lines(path)
    return text if text else read_stdin()


def one_line(text: str) -> str:
    """A text that keeps to its line, so that those after it keep their places."""
    return text.replace("\r", " ").replace("\n", " ")


def load_as(folder: str, device: str, kind: type | tuple[type, ...], wanted: str) -> Any:
    """Load a model folder that must hold what a command works with, or name the right command."""
    from qkv.convert import open_model
    from qkv.run.card import KINDS
    from qkv.tasks import load

    source = open_model(folder)
    found = load(source, device)
    if isinstance(found, kind):
        return found
    what, usage = KINDS[source.content["task"]]
    command = " ".join(usage.split()[:2])
    raise UserError(f"{folder} is {what} and no {wanted}; use it with `{command}`.")


@contextmanager
def by_options() -> Iterator[None]:
    """Let what is wrong with a table be mended by options, where no recipe is at hand."""
    try:
        yield
    except UserError as error:
        sentence = str(error).replace("text_field under [data]", "--text-field")
        raise UserError(sentence.replace("label_field under [data]", "--label-field")) from error


def check_writable(path: Path) -> None:
    """Say that a file cannot be written before the work is done that it is to hold."""
    if path.is_dir():
        raise UserError(f"{path} is a directory; name the file to write in it.")


def recipe_of(folder: str) -> Recipe:
    """What a model was trained with, where that is known: it says how examples look."""
    from qkv.config import Recipe, load_recipe
    from qkv.run.claim import RECIPE
    from qkv.shelf import find_model

    path = find_model(folder) / RECIPE
    return load_recipe(path) if path.exists() else Recipe()


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar with the count and time left on the error stream, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if total < 20 or not console.is_terminal:
        yield None
        return
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)
