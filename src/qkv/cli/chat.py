"""`qkv chat`: a conversation with a model, a line a turn."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import STDIN
from qkv.cli.generate import DRAWN, load_language_model
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Conversation

LEAVE, AFRESH = "/quit", "/new"


@options.with_decoding(*DRAWN)
def chat(
    *,
    model: options.Model,
    system: Annotated[str, typer.Option(help="Instructions to the model before you speak.")] = "",
    template: Annotated[
        str | None, typer.Option(help="plain, alpaca or chatml, where the model has none.")
    ] = None,
    greedy: options.Greedy = False,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    **settings: Any,
) -> None:
    """Talk with a model; /new starts afresh, Ctrl-C ends an answer, /quit or no more input leaves.

    \b
    Example: qkv chat --model runs/instruct
    Example: qkv chat --model runs/instruct --greedy < questions.txt
    """
    settings = options.search_or_draw(settings, greedy)
    speaker = load_language_model(model, device, dtype, settings)

    def begin() -> Conversation:
        return speaker.conversation(system, template=template, tell=_tell, **settings)

    talk = begin()
    for line in _lines():
        if line.strip() == LEAVE:
            break
        if line.strip() == AFRESH:
            talk = begin()
        elif line.strip():
            try:
                _answer(talk, line, as_json)
            except UserError as error:
                if not sys.stdin.isatty():
                    raise
                _tell(str(error))  # the conversation is as it was before, and need not end
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                print()  # the answer was long enough; what was read of it stays


def _answer(talk: Conversation, line: str, as_json: bool) -> None:
    if as_json:
        content = {"message": line, "answer": talk.say(line)}
        print(json.dumps(content, ensure_ascii=False), flush=True)
        return
    for piece in talk.stream(line):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print(flush=True)  # a program that asks through pipes waits for the end of the line


def _tell(sentence: str) -> None:
    print(f"· {sentence}", file=sys.stderr)


def _lines() -> Iterator[str]:
    """Lines as they are typed, after a prompt sign on a terminal."""
    from qkv.data.files import lines_in

    typed = lines_in(sys.stdin.buffer, STDIN)
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = next(typed, None)
        if line is None:
            return
        yield line
