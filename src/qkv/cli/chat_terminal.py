"""A chat on a terminal: messages and commands are typed, answers appear as they are written."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from qkv.cli import describe
from qkv.cli.chat_commands import CommandCompleter, run_command
from qkv.cli.markdown_stream import MarkdownStream
from qkv.cli.prompt import Prompt, noted_interrupt, remark
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Conversation
    from qkv.tasks.conversation import Tell
    from qkv.text import Message


class ChatTerminal:
    """A conversation and the terminal that it is shown on."""

    def __init__(
        self, begin: Callable[[Sequence[Message], Tell], Conversation], messages: Sequence[Message]
    ) -> None:
        """Begin with these messages; `begin` makes a conversation of messages."""
        self._begin = begin
        self.talk = begin(messages, self._tell)
        self._n_told = 0  # forgotten messages when that was last told
        self._text = MarkdownStream(sys.stdout.write)  # of the newest answer
        self.is_over = False

    def run(self, name: str) -> None:
        """Answer what is typed until the user leaves."""
        remark(f"{name}: /help shows what you can do here, Ctrl-D leaves")
        for message in Prompt("chat", CommandCompleter()).messages():
            try:
                if not message.strip():
                    continue
                if not run_command(message, self):
                    self.answer(self.talk.stream(message))
            except UserError as error:
                remark(str(error))  # the conversation is as it was before, and need not end
            except OSError as error:
                remark(describe(error))
            except KeyboardInterrupt:
                remark("stopped")
            if self.is_over:
                return

    def begin(self, messages: Sequence[Message]) -> None:
        """Begin another conversation with these messages, by the settings of this one."""
        settings = self.talk.settings
        self.talk = self._begin(messages, self._tell)
        self.talk.settings = settings
        self._n_told = 0

    def answer(self, pieces: Generator[str]) -> None:
        """Show an answer as it comes; Ctrl-C stops it, and what was shown stays."""
        text = self._text = MarkdownStream(sys.stdout.write)
        clock = _Clock(self.talk)
        try:
            with noted_interrupt() as is_interrupted:
                for piece in pieces:
                    clock.tick()
                    text.feed(piece)
                    sys.stdout.flush()
                    if is_interrupted():
                        break
        except KeyboardInterrupt:  # pressed twice
            pass
        finally:
            pieces.close()  # what was read joins the conversation
            text.finish()
            sys.stdout.flush()
        remark(clock.summary())

    def _tell(self, sentence: str) -> None:
        """Show what the conversation tells, but only once that it begins to forget."""
        forgotten, self._n_told = self._n_told, self.talk.forgotten
        if not forgotten or forgotten == self.talk.forgotten:
            self._text.finish()  # the line that was begun
            remark(sentence)


class _Clock:
    """The speed at which an answer is written."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._first = self._last = 0.0
        self._n_first = 0

    def tick(self) -> None:
        """Note that a piece has come."""
        self._last = time.perf_counter()
        if not self._first:
            self._first, self._n_first = self._last, self._talk.n_written

    def summary(self) -> str:
        """Say how long the answer is, how fast it came, and how full the context is."""
        talk = self._talk
        seconds, n_timed = self._last - self._first, talk.n_written - self._n_first
        speed = f", {n_timed / seconds:.1f} tokens/s" if seconds and n_timed else ""
        forgotten = f", {talk.forgotten} messages forgotten" if talk.forgotten else ""
        return (
            f"{talk.n_written:,} tokens{speed}; context {talk.n_seen:,} of {talk.context:,}"
            f"{forgotten}"
        )
