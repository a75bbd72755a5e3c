"""`qkv chat`: a conversation with a model, a line a turn."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import sampling
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Conversation

LEAVE, AFRESH = "/quit", "/new"


def chat(
    model: Annotated[str, typer.Option(help="Model folder, GGUF file or pulled name.")] = ...,  # type: ignore[assignment]
    system: Annotated[str, typer.Option(help="What the model is told before you speak.")] = "",
    template: Annotated[
        str | None, typer.Option(help="plain, alpaca or chatml, where the model has none.")
    ] = None,
    max_length: sampling.MaxLength = None,
    min_length: sampling.MinLength = None,
    greedy: sampling.Greedy = False,
    temperature: sampling.Temperature = None,
    top_k: sampling.TopK = None,
    top_p: sampling.TopP = None,
    min_p: sampling.MinP = None,
    repetition_penalty: sampling.Penalty = None,
    no_repeat: sampling.NoRepeat = None,
    seed: sampling.Seed = None,
    stop: sampling.Stop = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an answer.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Talk with a model; /new starts afresh, Ctrl-C ends an answer, /quit or no more input leaves.

    \b
    Example: qkv chat --model runs/instruct
    Example: qkv chat --model runs/instruct --greedy < questions.txt
    """
    from qkv.cli.generate import load_language_model

    settings = sampling.decode_settings(
        greedy,
        max_length=max_length,
        min_length=min_length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        no_repeat=no_repeat,
        seed=seed,
        stop=tuple(stop) if stop else None,
    )
    speaker = load_language_model(model, device)

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
                if not _is_typed():
                    raise
                _tell(str(error))  # the talk is as it was before, and need not end for this
            except KeyboardInterrupt:
                if not _is_typed():
                    raise
                print()  # the answer was long enough; what was heard of it stays in the talk


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


def _is_typed() -> bool:
    return sys.stdin.isatty()


def _lines() -> Iterator[str]:
    """What is typed, after a prompt sign on a terminal."""
    from qkv.data.files import lines_in

    typed = lines_in(sys.stdin.buffer, "standard input")
    while True:
        if _is_typed():
            print("> ", end="", file=sys.stderr, flush=True)
        line = next(typed, None)
        if line is None:
            return
        yield line
