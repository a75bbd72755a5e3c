"""A pseudo-terminal: a command is typed at, and its screen is read as a person sees it."""

import os
import signal
import termios
import time
from pathlib import Path

import pexpect
import pyte
from pexpect.fdpexpect import fdspawn

from tests.forking import Python

ENTER, ALT_ENTER, TAB, UP = "\r", "\x1b\r", "\t", "\x1b[A"
CTRL_C, CTRL_D = "\x03", "\x04"
PATIENCE = 60.0  # seconds until something that never comes is given up


class Terminal:
    """A command that runs on a terminal."""

    def __init__(self, *arguments: object, home: Path, columns: int = 70, rows: int = 24) -> None:
        """Start `qkv` with these arguments in the folder `home`, which is $QKV_HOME too."""
        self.screen = pyte.HistoryScreen(columns, rows, history=2000)
        self._stream = pyte.Stream(self.screen)
        self.raw = ""  # all that was written to the terminal
        environment = {**os.environ, "TERM": "xterm-256color", "QKV_HOME": str(home)}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):  # what the terminal itself says counts
            environment.pop(name, None)
        keyboard, screen = os.openpty()
        termios.tcsetwinsize(screen, (rows, columns))
        self._process = Python(["-m", "qkv", *arguments], environment, home, terminal=screen)
        os.close(screen)
        self._child = fdspawn(keyboard, encoding="utf-8", timeout=PATIENCE)

    @property
    def lines(self) -> list[str]:
        """All rows that were ever shown, those that have left the screen too."""
        screen = self.screen
        gone = [
            "".join(row[column].data for column in range(screen.columns))
            for row in screen.history.top
        ]
        rows = [line.rstrip() for line in (*gone, *screen.display)]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def type(self, keys: str) -> None:
        """Press keys."""
        self._child.send(keys)

    def paste(self, text: str) -> None:
        """Paste text, as terminals that mark pasted text do."""
        self._child.send(f"\x1b[200~{text}\x1b[201~")

    def wait_for(self, text: str, after: int = 0) -> None:
        """Read the terminal until a row after this many shows the text."""
        limit = time.monotonic() + PATIENCE
        while not any(text in line for line in self.lines[after:]):
            assert time.monotonic() < limit, "\n".join(["", *self.lines, f"never: {text!r}"])
            self._read()

    def ask(self, text: str, until: str = "; context ") -> list[str]:
        """Type a line, wait for a row with `until`, and return the rows that were added."""
        self.at_prompt()
        before = len(self.lines)
        self.type(text + ENTER)
        self.wait_for(until, before)
        self.at_prompt()
        return self.lines[before:-1]

    def at_prompt(self) -> None:
        """Wait until the last row is an empty prompt."""
        limit = time.monotonic() + PATIENCE
        while not self.lines or self.lines[-1] != ">":
            assert time.monotonic() < limit, "\n".join(["", *self.lines, "no prompt"])
            self._read()

    def end(self) -> int:
        """Wait for the command to end; return its exit code."""
        limit = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < limit, "\n".join(["", *self.lines, "it does not end"])
        self._child.close()
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Stop the command."""
        self._process.send_signal(signal.SIGKILL)
        self._child.close()

    def _read(self) -> bool:
        """Show what has been written; False where nothing more will be."""
        try:
            written = self._child.read_nonblocking(4096, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += written
        self._stream.feed(written)
        # A program may ask where the cursor is.
        if "\x1b[6n" in written:
            self.type(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
        return True
