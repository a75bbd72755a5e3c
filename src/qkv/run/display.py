"""What a run prints before its first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


@contextmanager
def reading_bar(title: str, shown: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar over bytes read on a terminal, once there is something to wait for."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield None
        return
    columns = TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)


@contextmanager
def progress_bar(
    title: str, total: int, console: Console | None = None
) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on a terminal that is called with how many more things are done."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda n: progress.advance(task, n)
