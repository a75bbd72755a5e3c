"""`qkv embed`: texts in, vectors out, or how similar the texts are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import (
    Advance,
    Answering,
    answer_lines,
    check_writable,
    given_lines,
    named_by_options,
    one_line,
    progress_bar,
)
from qkv.cli.fill import load_any_encoder
from qkv.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.tasks.encoder import Encoder


def answering(
    *,
    model: options.Model,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> Answering:
    """Turn lines into vectors."""
    encoder = load_any_encoder(model, device, dtype)

    def ask(lines: list[str], done: int, advance: Advance | None) -> Tensor:
        return encoder.embed(lines, progress=advance)

    show = _row_as_json("embedding") if as_json else _row_as_text(".6g")
    return Answering(encoder, ask, show)


@options.with_options_of(answering)
def embed(
    text: options.Texts = None,
    input_: options.Input = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the vectors to this .npy file instead.")
    ] = None,
    nearest: Annotated[
        Path | None, typer.Option(help="Show the most similar lines of this file for each text.")
    ] = None,
    k: Annotated[int, typer.Option(help="How many of these.")] = 5,
    similarity: Annotated[
        bool, typer.Option("--similarity", help="Show how similar each two of the texts are.")
    ] = False,
    **settings: Any,
) -> None:
    """Turn texts into vectors, or find similar texts.

    \b
    Example: qkv embed --model runs/encoder_en "a cat sleeps" "a dog barks" --similarity
    Example: qkv embed --model runs/encoder_en "cheap flights" --nearest questions.txt --k 3
    Example: qkv embed --model runs/encoder_en --output vectors.npy < lines.txt
    """
    if sum([output is not None, nearest is not None, similarity]) > 1:
        raise UserError("--output, --nearest and --similarity are three answers; ask for one.")
    if output:
        check_writable(output)
    batches, as_json = given_lines(text, input_), settings["as_json"]
    encoder, ask, show, *_ = answering(**settings)
    if not (output or nearest or similarity):
        answer_lines(batches, ask, show)
        return
    lines = [line for batch in batches for line in batch]
    if nearest:
        _print_nearest(encoder, lines, nearest, k, as_json)
        return
    with progress_bar(len(lines)) as advance, named_by_options():
        vectors = ask(lines, 0, advance)
    if output:
        write_array(output, vectors)
        return
    show = _row_as_json("similarity") if as_json else _row_as_text(".4f")
    for line, row in zip(lines, encoder.similarity(vectors, vectors), strict=True):
        print(show(line, row))


def _row_as_text(form: str) -> Callable[[str, Tensor], str]:
    return lambda line, row: " ".join(f"{value:{form}}" for value in row.tolist())


def _row_as_json(name: str) -> Callable[[str, Tensor], str]:
    def show(line: str, row: Tensor) -> str:
        # as many digits as float32 has
        values = [float(f"{value:.9g}") for value in row.tolist()]
        return json.dumps({"text": line, name: values}, ensure_ascii=False)

    return show


def write_array(path: Path, vectors: Tensor) -> None:
    """Write vectors as a .npy file."""
    import numpy as np

    from qkv.files import replacing

    with replacing(path) as beside, beside.open("wb") as file:
        np.save(file, vectors.numpy())


def _print_nearest(
    encoder: Encoder, lines: Sequence[str], path: Path, k: int, as_json: bool
) -> None:
    """Each text, and under it the most similar lines with their cosines."""
    from qkv.data import read_lines

    others = read_lines(path)
    if not any(other.strip() for other in others):
        raise UserError(f"There is no text in {path}; give a file with at least one line.")
    with progress_bar(len(others)) as advance, named_by_options():
        found = encoder.nearest(lines, others, k, advance)
    for line, neighbours in zip(lines, found, strict=True):
        if as_json:
            near = [
                {"line": best.index + 1, "text": best.text, "score": float(f"{best.score:.9g}")}
                for best in neighbours
            ]
            print(json.dumps({"text": line, "nearest": near}, ensure_ascii=False))
            continue
        print(one_line(line))
        for best in neighbours:
            print(f"  {best.score:.4f}  {one_line(best.text)}")
