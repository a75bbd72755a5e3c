"""`qkv chat`: a conversation with a model, on a terminal or a line a turn."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import LEAVE, STDIN, at_terminal, tell
from qkv.cli.generate import check_seed, load_language_model
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Conversation
    from qkv.tasks.conversation import Tell
    from qkv.text import Message

SAMPLING = {"sample": True, "temperature": 0.2, "top_p": 0.9}
"""How answers are drawn on a terminal where neither the model nor an option says it.

Low, for models that bring no settings are mostly small, and soon talk nonsense when it is warmer.
"""
AFRESH = "/new"


@options.with_decoding("stop", "repetition_penalty", *options.WRITES)
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
    """Talk with a model; /help lists what else can be done.

    From a pipe, each line is a message; /new starts afresh, /quit or no more input leaves.

    \b
    Example: qkv chat --model smollm2
    Example: qkv chat --model runs/instruct --greedy < questions.txt
    """
    settings = options.search_or_draw(settings, greedy)
    on_terminal = at_terminal() and not as_json
    speaker = load_language_model(model, device, dtype)
    if on_terminal and not (greedy or speaker.says_how_to_draw):
        settings = {**SAMPLING, **settings}
    check_seed(speaker, model, settings)

    def begin(messages: Sequence[Message] = (), tell: Tell = tell) -> Conversation:
        return speaker.conversation("", messages, template, tell, **settings)

    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    if on_terminal:
        from qkv.cli.chat_terminal import ChatTerminal

        ChatTerminal(begin, opening).run(model)
    else:
        _answer_lines(lambda: begin(opening), as_json)


def _answer_lines(begin: Callable[[], Conversation], as_json: bool) -> None:
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
                tell(str(error))  # the conversation is as it was before, and need not end
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
