"""`qkv fill`: texts with gaps in, whole texts and what else could stand in the gaps out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.common import given_lines, one_line, progress_bar
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks.encoder import Candidate, Encoder, Filled


def fill(
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts with <mask> in each gap; none: lines of standard input."),
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder, GGUF file or pulled name.")] = ...,  # type: ignore[assignment]
    input_: Annotated[
        Path | None, typer.Option("--input", help="Instead: a file, a line a text; .gz too.")
    ] = None,
    top_k: Annotated[int, typer.Option(help="Candidates for each gap; 1: the text alone.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Fill gaps in texts, the surest first; blank lines stay blank, in their place.

    \b
    Example: qkv fill --model runs/encoder_en "The capital of France is <mask>."
    Example: qkv fill --model runs/encoder_en --top-k 1 < lines.txt > filled.txt
    """
    lines = given_lines(text, input_)
    encoder = load_any_encoder(model, device)
    if encoder.model.config.head != "masked":
        raise UserError(f"{model} cannot fill gaps, but embed texts; use it with `qkv embed`.")
    with progress_bar(len(lines)) as advance:
        found = encoder.fill(lines, top_k=top_k, progress=advance)
    for line, filled in zip(lines, found, strict=True):
        print(_as_json(line, filled) if as_json else _as_text(filled, top_k))


def load_any_encoder(folder: str, device: str) -> Encoder:
    """Load a model folder that must hold an encoder of texts, whatever else it is for."""
    from qkv.convert import open_model
    from qkv.convert.model_folder import load_config
    from qkv.device import pick_device
    from qkv.tasks.encoder import Encoder

    source = open_model(folder)
    task, config, _ = load_config(source)
    if config.family != "encoder":
        raise UserError(f"{folder} is no encoder; use it with `qkv {task}`.")
    if config.patch_size:
        raise UserError(f"{folder} reads images, not texts; use it with `qkv {task}`.")
    return Encoder.load(source, pick_device(device))


def _as_text(filled: Filled, top_k: int) -> str:
    """The whole text, and under it the candidates of each gap, if there may be several."""
    lines = [one_line(filled.text)]
    if top_k > 1:
        for number, candidates in enumerate(filled.masks, start=1):
            lines.append(f"  {number}: {', '.join(map(_share, candidates))}")
    return "\n".join(lines)


def _share(candidate: Candidate) -> str:
    return f"{one_line(candidate.text)} {100 * candidate.probability:.1f} %"


def _as_json(line: str, filled: Filled) -> str:
    masks = [[dataclasses.asdict(one) for one in candidates] for candidates in filled.masks]
    return json.dumps({"text": line, "filled": filled.text, "masks": masks}, ensure_ascii=False)
