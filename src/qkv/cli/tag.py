"""`qkv tag`: sentences in, sentences with their entities marked (or each word's label) out."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import Advance, Answering, answer_lines, given_lines, load_as, one_line
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Tagging


def answering(
    *,
    model: options.Model,
    columns: Annotated[
        bool, typer.Option("--columns", help="A word and its label a line, as in .conll files.")
    ] = False,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> Answering:
    """Mark entities in lines, or label each word; blank lines stay blank."""
    if columns and as_json:
        raise UserError("--columns and --json are two forms of the output; give one of them.")
    from qkv.tasks import Tagger

    tagger = load_as(model, device, dtype, Tagger, "tagger")

    def ask(lines: list[str], done: int, advance: Advance | None) -> list[Tagging]:
        return tagger.tag(lines, advance)

    marked = partial(_as_words, "{}/{}", " ") if tagger.scheme is None else _as_text
    as_columns = partial(_as_words, "{}\t{}\n", "")  # with a blank line after the last
    return Answering(tagger, ask, as_columns if columns else _as_json if as_json else marked)


@options.with_options_of(answering)
def tag(text: options.Texts = None, input_: options.Input = None, **settings: Any) -> None:
    """Mark entities in sentences, or label each word.

    Blank lines stay blank.

    \b
    Example: qkv tag --model runs/wnut17 "Angela Merkel visited Paris"
             [Angela Merkel|person] visited [Paris|location]
    Example: qkv tag --model runs/wnut17 --json < lines.txt > lines.jsonl
    Example: qkv tag --model runs/wnut17 --input lines.txt --columns > lines.conll
    """
    batches = given_lines(text, input_)
    _, ask, show, *_ = answering(**settings)
    answer_lines(batches, ask, show)


def _as_text(line: str, tagging: Tagging) -> str:
    """The text with its entities in brackets."""
    parts: list[str] = []
    end = 0
    for entity in tagging.entities:
        parts += [tagging.text[end : entity.start], f"[{entity.text}|{entity.type}]"]
        end = entity.end
    return one_line("".join([*parts, tagging.text[end:]]))


def _as_words(form: str, between: str, line: str, tagging: Tagging) -> str:
    return between.join(map(form.format, tagging.words, tagging.labels))


def _as_json(line: str, tagging: Tagging) -> str:
    names = ("word", "label", "probability", "start", "end")
    words = zip(tagging.words, tagging.labels, tagging.probabilities, tagging.spans, strict=True)
    content = {
        "text": tagging.text,
        "tokens": [
            dict(zip(names, (word, label, sure, *span), strict=True))
            for word, label, sure, span in words
        ],
        "entities": [dataclasses.asdict(entity) for entity in tagging.entities],
    }
    return json.dumps(content, ensure_ascii=False)
