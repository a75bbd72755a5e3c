"""`qkv embed`: texts in, vectors out, or how alike the texts are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.common import check_writable, given_lines, one_line, progress_bar
from qkv.cli.fill import load_any_encoder
from qkv.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.tasks.encoder import Encoder


def embed(
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts; none: lines of standard input.")
    ] = None,
    model: Annotated[str, typer.Option(help="Folder or pulled name of any encoder.")] = ...,  # type: ignore[assignment]
    input_: Annotated[
        Path | None, typer.Option("--input", help="Instead: a file, a line a text; .gz too.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the vectors to this .npy file instead.")
    ] = None,
    nearest: Annotated[
        Path | None, typer.Option(help="Show the lines of this file that are most like each text.")
    ] = None,
    k: Annotated[int, typer.Option(help="How many of these.")] = 5,
    similarity: Annotated[
        bool, typer.Option("--similarity", help="Show how alike each two of the texts are.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Turn texts into vectors, one a line, or find texts that are alike.

    \b
    Example: qkv embed --model runs/encoder_en "a cat sleeps" "a dog barks" --similarity
    Example: qkv embed --model runs/encoder_en "cheap flights" --nearest questions.txt --k 3
    Example: qkv embed --model runs/encoder_en --output vectors.npy < lines.txt
    """
    if sum([output is not None, nearest is not None, similarity]) > 1:
        raise UserError("--output, --nearest and --similarity are three answers; ask for one.")
    if output:
        check_writable(output)
    lines = given_lines(text, input_)
    encoder = load_any_encoder(model, device)
    if nearest:
        _print_nearest(encoder, lines, nearest, k, as_json)
        return
    with progress_bar(len(lines)) as advance:
        vectors = encoder.embed(lines, progress=advance)
    if output:
        _write(output, vectors)
    elif similarity:
        _print_rows(lines, encoder.similarity(vectors, vectors), "similarity", ".4f", as_json)
    else:
        _print_rows(lines, vectors, "embedding", ".6g", as_json)


def _print_rows(lines: Sequence[str], rows: Tensor, name: str, form: str, as_json: bool) -> None:
    for line, row in zip(lines, rows.tolist(), strict=True):
        if as_json:
            # As many digits as float32 has
            values = [float(f"{value:.9g}") for value in row]
            print(json.dumps({"text": line, name: values}, ensure_ascii=False))
        else:
            print(" ".join(f"{value:{form}}" for value in row))


def _write(path: Path, vectors: Tensor) -> None:
    import numpy as np

    from qkv.files import replacing

    with replacing(path) as beside, beside.open("wb") as file:
        np.save(file, vectors.numpy())


def _print_nearest(
    encoder: Encoder, lines: Sequence[str], path: Path, k: int, as_json: bool
) -> None:
    """Each text, and under it the lines that are most like it with their cosines."""
    from qkv.data import read_lines

    others = read_lines(path)
    if not any(other.strip() for other in others):
        raise UserError(f"There is no text in {path}; give a file with at least one line.")
    with progress_bar(len(others)) as advance:
        found = encoder.nearest(lines, others, k, advance)
    for line, neighbours in zip(lines, found, strict=True):
        if as_json:
            near = [
                {"line": one.index + 1, "text": one.text, "score": float(f"{one.score:.9g}")}
                for one in neighbours
            ]
            print(json.dumps({"text": line, "nearest": near}, ensure_ascii=False))
            continue
        print(one_line(line))
        for one in neighbours:
            print(f"  {one.score:.4f}  {one_line(one.text)}")
