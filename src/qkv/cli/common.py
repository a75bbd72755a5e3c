"""What the commands have in common: lines in, one line out, a bar, the right kind of model."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from qkv.errors import UserError

T = TypeVar("T")
U = TypeVar("U")
Advance = Callable[[int], None]
Ask = Callable[[list[T], int, Advance | None], Sequence[U]]
Show = Callable[[T, U], str]
LEAVE = "/quit"  # what is typed to leave a prompt
STDIN = "standard input"  # its name in errors
AT_ONCE = 1 << 22  # characters of standard input that are answered together
MOMENT = 0.02  # seconds to wait for more lines before those that came are answered


class Answering(NamedTuple):
    """What a command does with lines: a model, what it is asked, how an output is shown."""

    model: Any
    ask: Callable[[list[Any], int, Advance | None], Any]
    show: Show[Any, Any]
    stream: Callable[[str, int], Iterator[str]] | None = None
    """Gives the output of one line, which so many came before, as it grows."""


def at_terminal() -> bool:
    """Whether input and output are both a terminal, and neither a file nor a pipe."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def is_styled() -> bool:
    """Whether a terminal may be sent styles."""
    return os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def tell(sentence: str) -> None:
    """Remark something on the error stream."""
    print(f"· {sentence}", file=sys.stderr)


def given_lines(
    text: list[str] | None, path: Path | None = None, are_files: bool = False
) -> Iterator[list[str]]:
    """Texts of the command line, of a file, or else of standard input as they come.

    A text that is a file's name, where none `are_files`, is remarked upon.
    """
    if text and path:
        raise UserError("Texts are given both as arguments and as --input; give one of them.")
    for name in text or ():
        if not are_files and os.path.isfile(name):  # noqa: PTH113 - Path refuses long texts
            tell(f"{name} is taken as a text, but is a file too; its lines are read with < {name}")
    if not path:
        return iter([text]) if text else stdin_lines()
    from qkv.data import read_lines

    return iter([read_lines(path)])


def stdin_lines() -> Iterator[list[str]]:
    """The lines of standard input, together those that come without a pause."""
    text = ""
    for chunk in stdin_chunks():
        text += chunk
        if len(text) < AT_ONCE and _more_at_hand(sys.stdin.buffer):
            continue
        *lines, text = text.split("\n")
        if lines:
            yield lines
    if text:  # the last line may lack its end
        yield text.removesuffix("\n").split("\n")


def stdin_chunks() -> Iterator[str]:
    """The text of standard input as it comes."""
    from qkv.data.files import chunks_in

    return chunks_in(sys.stdin.buffer, STDIN)


def _more_at_hand(stream: Any) -> bool:
    try:
        return bool(select.select([stream], [], [], MOMENT)[0])
    except (OSError, ValueError):  # not a file of the system: all of it is there
        return True


def answer_lines(
    batches: Iterable[list[T]], ask: Ask[T, U], show: Show[T, U], done: int = 0
) -> None:
    """Answer texts batch by batch, each printed before the next is read.

    `ask` takes texts, the number of those before them, and a function that counts progress. `done`
    is the number of texts before the first batch.
    """
    for texts in batches:
        with progress_bar(len(texts)) as advance, named_by_options(done):
            outputs = ask(texts, done, advance)
        for text, output in zip(texts, outputs, strict=True):
            print(show(text, output))
        sys.stdout.flush()
        done += len(texts)


def one_line(text: str) -> str:
    """A text on one line, so that output keeps a line for each text."""
    return text.replace("\r", " ").replace("\n", " ")


def load_as(folder: str, device: str, dtype: str | None, kind: type[T], wanted: str) -> T:
    """Load a model that must be of the kind a command works with, or name the right command."""
    from qkv.convert import open_model
    from qkv.tasks import load

    source = open_model(folder, dtype)
    model = load(source, device)
    if isinstance(model, kind):
        return model
    from qkv.config import TASKS

    spec = TASKS[source.content["task"]]
    command = " ".join(spec.usage.split()[:2])
    raise UserError(f"{folder} is {spec.about} and no {wanted}; use it with `{command}`.")


@contextmanager
def named_by_options(before: int = 0) -> Iterator[None]:
    """Let errors speak of options instead of settings; `before` texts were read already."""
    try:
        yield
    except UserError as error:
        sentence = re.sub(
            r"^Text (\d+)", lambda found: f"Text {int(found[1]) + before}", str(error)
        )
        for setting, option in (
            ("source_field and target_field under [data]", "--source-field and --target-field"),
            ("text_field under [data]", "--text-field"),
            ("label_field under [data]", "--label-field"),
            ("truncate=True", "--truncate"),
            ("threshold is", "--threshold is"),
        ):
            sentence = sentence.replace(setting, option)
        raise UserError(sentence) from error


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before the work is done that it is to hold."""
    if path.is_dir():
        raise UserError(f"{path} is a directory; name the file to write in it.")


@contextmanager
def progress_bar(total: int) -> Iterator[Advance | None]:
    """A bar with the count and time left on the error stream, where that is a terminal."""
    if total < 20:
        yield None
        return
    from qkv.run.display import progress_bar as bar

    with bar("", total) as advance:
        yield advance


@contextmanager
def counting_bar(name: str = "") -> Iterator[Callable[..., None] | None]:
    """A bar on a terminal that is called with what is done, what there is in all, and of what."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from qkv.run.display import terminal_bar

    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    named = TextColumn("{task.description}")
    with terminal_bar(*columns, named, total=None, description=name) as update:
        yield update and (
            lambda done, total, name="": update(completed=done, total=total, description=name)
        )
