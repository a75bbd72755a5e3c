"""`qkv translate`: lines in, lines out, order kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import (
    LEAVE,
    Advance,
    Answering,
    Ask,
    answer_lines,
    at_terminal,
    given_lines,
    load_as,
    one_line,
)
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Translation


@options.with_decoding("beams", "length_penalty", "n_best", *options.WRITES)
def answering(
    *,
    model: options.TranslatorModel = None,
    source_language: Annotated[
        str, typer.Option("--from", help="The texts' language, for a model that knows several.")
    ] = "",
    target_language: Annotated[
        str, typer.Option("--to", help="The language to translate into, likewise.")
    ] = "",
    prefix: Annotated[str, typer.Option(help="How each translation must begin.")] = "",
    sample: Annotated[bool, typer.Option("--sample", help="Draw at random.")] = False,
    truncate: options.Truncate = False,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    **settings: Any,
) -> Answering:
    """Translate lines, by default Chinese to English; blank lines stay blank."""
    idle = [name for name in options.DRAWS if name in settings and not sample]
    if idle:
        raise UserError(f"--{idle[0].replace('_', '-')} is about random draws; add --sample.")
    if sample:
        settings["sample"] = True
    named = {"source_language": source_language, "target_language": target_language}
    settings |= {role: code for role, code in named.items() if code}
    from qkv.shelf import TRANSLATOR, packaged
    from qkv.tasks import Translator

    translator = load_as(
        model or str(packaged()[TRANSLATOR]), device, dtype, Translator, "translator"
    )

    def ask(lines: list[str], done: int, advance: Advance | None) -> list[list[Translation]]:
        return translator.n_best(
            lines, prefix=prefix, truncate=truncate, progress=advance, first=done, **settings
        )

    return Answering(translator, ask, _as_json if as_json else _as_text)


@options.with_options_of(answering)
def translate(text: options.Texts = None, input_: options.Input = None, **settings: Any) -> None:
    """Translate texts, by default from Chinese to English.

    Blank lines stay blank.

    \b
    Example: qkv translate 我爱你
    Example: qkv translate --model runs/demo 我爱你
    Example: qkv translate --model nllb --from en --to de "I love you."
    Example: qkv translate --model runs/demo < lines.zh > lines.en
    """
    on_terminal = not (text or input_ or settings["as_json"]) and at_terminal()
    batches = _typed_lines() if on_terminal else given_lines(text, input_)
    _, ask, show, *_ = answering(**settings)
    if on_terminal:
        _answer_typed(batches, ask)
    else:
        answer_lines(batches, ask, show)


def _typed_lines() -> Iterator[list[str]]:
    """Yield lines as they are typed on a terminal, until the user leaves."""
    from qkv.cli.prompt import Prompt, remark

    remark("/quit or Ctrl-D leaves")
    for message in Prompt("translate").messages():
        if message.strip() == LEAVE:
            return
        if message.strip():
            yield message.split("\n")


def _answer_typed(batches: Iterable[list[str]], ask: Ask[str, list[Translation]]) -> None:
    """Answer what is typed; a mistake, or Ctrl-C, does not end it."""
    from qkv.cli.prompt import remark

    done = 0
    for lines in batches:
        try:
            answer_lines([lines], ask, _as_text, done)
        except UserError as error:
            remark(str(error))
        except KeyboardInterrupt:
            remark("stopped")
        done += len(lines)


def _as_text(line: str, translations: Sequence[Translation]) -> str:
    """The translation alone; several as lines of score and text; none as a blank line."""
    if len(translations) > 1:
        return "\n".join(f"{best.score:.4f}\t{one_line(best.text)}" for best in translations)
    return one_line(translations[0].text) if translations else ""


def _as_json(line: str, translations: Sequence[Translation]) -> str:
    content: dict[str, Any] = {"source": line, "translation": ""}
    found = [{"translation": best.text, "score": best.score} for best in translations]
    if found:
        content |= found[0]
    if len(found) > 1:
        content["n_best"] = found
    return json.dumps(content, ensure_ascii=False)
