"""A prompt on a terminal: line editing, history, several lines, completion.

Imported only on a terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from qkv.cli.common import is_styled
from qkv.shelf import home

SIGN, FURTHER = "> ", "… "
NO_BREAK = "\N{NO-BREAK SPACE}"  # a space within a remark where no row ends
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Prompt:
    """Asks for messages, each of one line or several."""

    def __init__(self, name: str, completer: Completer | None = None) -> None:
        """Begin with what was typed before in the command of this name."""
        self._session: PromptSession[str] = PromptSession(
            history=_history(home() / f"{name}_history"),
            key_bindings=_key_bindings(),
            multiline=True,  # with Enter bound to the end of a message
            prompt_continuation=lambda width, line, wraps: "" if wraps else FURTHER,
            completer=completer,
            complete_while_typing=False,
            enable_history_search=True,
        )

    def messages(self) -> Iterator[str]:
        """Yield what is typed until Ctrl-D; Ctrl-C drops what was typed so far."""
        while True:
            try:
                message = self._session.prompt(SIGN)
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self._session.default_buffer.text:
                    remark("/quit or Ctrl-D leaves")
                continue
            yield message.rstrip("\n")  # of pasted text


def remark(text: str, indent: int = 2) -> None:
    """Print something that is about a talk and no part of it, in a dim colour.

    `indent` is where its further rows begin.
    """
    columns = shutil.get_terminal_size().columns - 1
    rows = textwrap.wrap(
        f"· {text}",
        max(columns, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    shown = "\n".join(rows).replace(NO_BREAK, " ")
    print(f"{DIM}{shown}{PLAIN}" if is_styled() else shown, flush=True)


@contextmanager
def noted_interrupt() -> Iterator[Callable[[], bool]]:
    """Let a first Ctrl-C only be noted, and a second one interrupt; keys are not echoed meanwhile.

    Yields a function that tells whether Ctrl-C was pressed.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        with _silent_keys():
            yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _silent_keys() -> Iterator[None]:
    """Keep keys that are pressed from being shown in the midst of an answer."""
    try:
        import termios

        settings = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError, ValueError, termios.error):  # no terminal of this kind
        yield
        return
    silent: list[Any] = [*settings]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, settings)


def _history(path: Path) -> History:
    """Open the history of typed lines, in a file for its owner alone, or else in memory."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
        return FileHistory(path)
    return InMemoryHistory()


def _key_bindings() -> KeyBindings:
    """Enter ends a message, unless a backslash precedes it; Alt-Enter begins a line."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # it chooses the completion
        elif re.search(r"\\$", buffer.document.current_line_before_cursor):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings
