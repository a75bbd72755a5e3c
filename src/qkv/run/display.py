"""What a run prints before its first step, and the bars of long work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


def remark(console: Console, sentence: str) -> None:
    """Print something about a run, on one line however long it is."""
    console.print(f"· {sentence}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def terminal_bar(
    *columns: ProgressColumn, console: Console | None = None, **task: Any
) -> Iterator[Callable[..., None] | None]:
    """Show a bar on the error stream, where that is a terminal.

    Yields a function that takes what `Progress.update` does.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(*columns, console=console, transient=True) as progress:
        yield partial(progress.update, progress.add_task(**{"description": "", **task}))


@contextmanager
def reading_bar(title: str, shown: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar over bytes read on a terminal, once there is something to wait for."""
    columns = TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with terminal_bar(*columns, total=None, visible=False) if shown else nullcontext() as update:
        yield update and (lambda done, total: update(completed=done, total=total, visible=True))


@contextmanager
def progress_bar(
    title: str, total: int, console: Console | None = None
) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on a terminal that is called with how many more things are done."""
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with terminal_bar(*columns, console=console, total=total) as update:
        yield update and (lambda n: update(advance=n))
