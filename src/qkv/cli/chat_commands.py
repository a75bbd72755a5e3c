"""The commands of a chat on a terminal: what begins with a slash is said to qkv."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from qkv.cli.prompt import NO_BREAK, remark
from qkv.config import DRAWING, DecodeConfig
from qkv.config.fields import suggestion
from qkv.errors import UserError
from qkv.tasks.conversation import load_messages, save_messages

if TYPE_CHECKING:
    from qkv.cli.chat_terminal import ChatTerminal
    from qkv.text import Message

SETTINGS = (*DRAWING, "max_length", "min_length", "repetition_penalty", "no_repeat", "seed")
KEYS = (
    "Enter sends a message; Alt-Enter, or a backslash before Enter, begins a new line; pasted "
    "lines are one message. Ctrl-C stops an answer, which stays as far as it came; Ctrl-D leaves. "
    "A message that begins with a slash is typed after a space."
)


class Command(NamedTuple):
    """What a command is called with, what it does in words, and what it does."""

    argument: str
    about: str
    run: Callable[[ChatTerminal, str], None]


def run_command(line: str, terminal: ChatTerminal) -> bool:
    """Run the command that a message is; False where it is none."""
    typed = re.match(r"(/[A-Za-z]*)(?:\s+(.*))?$", line.rstrip(), re.DOTALL)
    if not typed:
        return False
    name, argument = typed[1], typed[2] or ""
    if name not in COMMANDS:
        near = suggestion(name, COMMANDS)
        raise UserError(f"There is no command {name}{near}")
    command = COMMANDS[name]
    if argument and not command.argument:
        raise UserError(f"{name} stands alone, but {argument[:40]!r} follows it; leave that out.")
    command.run(terminal, argument)
    return True


def _help(terminal: ChatTerminal, argument: str) -> None:
    shown = {name: f"{name} {command.argument}".strip() for name, command in COMMANDS.items()}
    width = max(map(len, shown.values()))
    for name, command in COMMANDS.items():
        lead = f"{shown[name]:{width}}".replace(" ", NO_BREAK)
        remark(f"{lead}{NO_BREAK * 2}{command.about}", width + 4)
    remark(KEYS)


def _new(terminal: ChatTerminal, argument: str) -> None:
    terminal.begin([message for message in terminal.talk.messages if message["role"] == "system"])
    remark("a new conversation")


def _system(terminal: ChatTerminal, argument: str) -> None:
    talk = terminal.talk
    if argument:
        talk.system = "" if argument == '""' else argument
    remark(f"system: {talk.system}" if talk.system else "there is no system message")


def _save(terminal: ChatTerminal, argument: str) -> None:
    path = _path("/save", argument)
    save_messages(terminal.talk.messages, path)
    remark(f"{_count(terminal.talk.messages)} in {path}")


def _load(terminal: ChatTerminal, argument: str) -> None:
    path = _path("/load", argument)
    messages = load_messages(path)
    terminal.begin(messages)
    remark(f"{_count(messages)} from {path}")
    if messages and messages[-1]["role"] == "user":
        terminal.answer(terminal.talk.retry())


def _count(messages: Sequence[Message]) -> str:
    return f"{len(messages)} message{'s' * (len(messages) != 1)}"


def _path(name: str, argument: str) -> Path:
    if not argument:
        raise UserError(f"{name} needs the name of a file, such as {name} talk.json.")
    return Path(argument).expanduser()


def _undo(terminal: ChatTerminal, argument: str) -> None:
    content = terminal.talk.undo()
    start = " ".join(content.split())
    remark(f"taken back: {start if len(start) <= 60 else start[:59] + '…'}")


def _retry(terminal: ChatTerminal, argument: str) -> None:
    settings = terminal.talk.settings
    if not (settings.sample and settings.temperature):
        remark("the answer will be the same, for nothing is drawn; /set temperature=0.7 draws")
    terminal.answer(terminal.talk.retry())


def _set(terminal: ChatTerminal, argument: str) -> None:
    talk = terminal.talk
    given: dict[str, Any] = dict(_setting(words) for words in argument.split())
    if given:
        # To name a temperature is to ask for draws.
        if not given.keys().isdisjoint(DRAWING):
            given["sample"] = True
        try:
            talk.change(**given)
        except UserError as error:
            raise UserError(str(error).removeprefix("decode: ")) from error
    shown = [f"{name}={getattr(talk.settings, name):g}" for name in SETTINGS]
    remark(
        " ".join(shown) if talk.settings.sample else f"greedy: {' '.join(shown[len(DRAWING) :])}"
    )


def _setting(words: str) -> tuple[str, int | float]:
    """Read name=value."""
    name, equals, value = words.partition("=")
    if name not in SETTINGS:
        raise UserError(f"/set knows no {name!r}{suggestion(name, SETTINGS)}")
    if not equals:
        usual = getattr(DecodeConfig(), name)
        raise UserError(f"/set {name} has no value; write it as /set {name}={usual:g}.")
    kind: type[int] | type[float] = get_type_hints(DecodeConfig)[name]
    try:
        return name, kind(value)
    except ValueError as error:
        about = next(field.metadata["help"] for field in fields(DecodeConfig) if field.name == name)
        noun = "a whole number" if kind is int else "a number"
        raise UserError(f"{words!r} gives {name} no value: it is {noun} ({about}).") from error


def _quit(terminal: ChatTerminal, argument: str) -> None:
    terminal.is_over = True


COMMANDS = {
    "/help": Command("", "show this", _help),
    "/new": Command("", "begin a new conversation, with the same system message", _new),
    "/system": Command("[TEXT]", 'show or change the system message; "" removes it', _system),
    "/save": Command("FILE", "write the messages as JSON", _save),
    "/load": Command("FILE", "go on with a conversation that was saved", _load),
    "/undo": Command("", "take back the last message and its answer", _undo),
    "/retry": Command("", "answer the last message again, with other draws", _retry),
    "/set": Command("[temperature=0.7 …]", f"show or change: {', '.join(SETTINGS)}", _set),
    "/quit": Command("", "leave", _quit),
}


class CommandCompleter(Completer):
    """Completes commands, the names that /set knows, and paths."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Yield what the text before the cursor may become."""
        text = document.text_before_cursor
        name, space, argument = text.partition(" ")
        if not space and text.startswith("/"):
            yield from _beginning(text, COMMANDS)
        elif name == "/set":
            yield from _beginning(argument.rpartition(" ")[2], (f"{each}=" for each in SETTINGS))
        elif name in ("/save", "/load"):
            yield from self._paths.get_completions(Document(argument), event)


def _beginning(begun: str, names: Iterable[str]) -> Iterator[Completion]:
    return (Completion(name, -len(begun)) for name in names if name.startswith(begun))
