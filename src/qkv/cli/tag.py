"""`qkv tag`: sentences in, sentences with their entities marked (or each word's label) out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.common import given_lines, load_as, one_line, progress_bar
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks.tag import Tagger, Tagging


def tag(
    text: Annotated[
        list[str] | None, typer.Argument(help="Sentences; none: lines of standard input.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder, GGUF file or pulled name.")] = ...,  # type: ignore[assignment]
    input_: Annotated[
        Path | None, typer.Option("--input", help="Instead: a file, a line a sentence; .gz too.")
    ] = None,
    columns: Annotated[
        bool, typer.Option("--columns", help="A word and its label a line, as in .conll files.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Mark entities in sentences, or label each word; blank lines stay blank, in their place.

    \b
    Example: qkv tag --model runs/wnut17 "Angela Merkel visited Paris"
             [Angela Merkel|person] visited [Paris|location]
    Example: qkv tag --model runs/wnut17 --json < lines.txt > lines.jsonl
    Example: qkv tag --model runs/wnut17 --input lines.txt --columns > lines.conll
    """
    if columns and as_json:
        raise UserError("--columns and --json are two forms of the output; give one of them.")
    lines = given_lines(text, input_)
    tagger = load_tagger(model, device)
    with progress_bar(len(lines)) as advance:
        found = tagger.tag(lines, progress=advance)
    show = _as_columns if columns else _as_json if as_json else _as_text
    for tagging in found:
        print(show(tagging, tagger.scheme is not None))


def load_tagger(folder: str, device: str) -> Tagger:
    """Load a model folder that must hold a tagger."""
    from qkv.tasks import Tagger

    return load_as(folder, device, Tagger, "tagger")


def _as_text(tagging: Tagging, entities: bool) -> str:
    """The text with its entities in brackets; or each word with its label."""
    if not entities:
        pairs = zip(tagging.words, tagging.labels, strict=True)
        return " ".join(f"{word}/{label}" for word, label in pairs)
    parts: list[str] = []
    end = 0
    for one in tagging.entities:
        parts += [tagging.text[end : one.start], f"[{one.text}|{one.type}]"]
        end = one.end
    return one_line("".join([*parts, tagging.text[end:]]))


def _as_columns(tagging: Tagging, entities: bool) -> str:
    """A line for each word, and a blank one after the last."""
    pairs = zip(tagging.words, tagging.labels, strict=True)
    return "".join(f"{word}\t{label}\n" for word, label in pairs)


def _as_json(tagging: Tagging, entities: bool) -> str:
    names = ("word", "label", "probability", "start", "end")
    words = zip(tagging.words, tagging.labels, tagging.probabilities, tagging.spans, strict=True)
    content = {
        "text": tagging.text,
        "tokens": [
            dict(zip(names, (word, label, sure, *span), strict=True))
            for word, label, sure, span in words
        ],
        "entities": [dataclasses.asdict(one) for one in tagging.entities],
    }
    return json.dumps(content, ensure_ascii=False)
