"""`qkv fill`: texts with gaps in, whole texts and what else could fill the gaps out."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import Advance, Answering, answer_lines, given_lines, one_line
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Encoder, Filled


def answering(
    *,
    model: options.EncoderModel = None,
    top_k: Annotated[int, typer.Option(help="Candidates for each gap; 1: the text alone.")] = 5,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> Answering:
    """Fill gaps in lines, the surest first; blank lines stay blank."""
    from qkv.shelf import ENCODER, packaged

    model = model or str(packaged()[ENCODER])
    encoder = load_any_encoder(model, device, dtype)
    if encoder.model.config.head != "masked":
        raise UserError(f"{model} cannot fill gaps, but embed texts; use it with `qkv embed`.")

    def ask(lines: list[str], done: int, advance: Advance | None) -> list[Filled]:
        return encoder.fill(lines, top_k=top_k, progress=advance)

    show = _as_json if as_json else lambda _, filled: _as_text(filled, top_k > 1)
    return Answering(encoder, ask, show)


@options.with_options_of(answering)
def fill(
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts with <mask> in each gap; none: lines of standard input."),
    ] = None,
    input_: options.Input = None,
    **settings: Any,
) -> None:
    """Fill gaps in texts, the surest first.

    Blank lines stay blank.

    \b
    Example: qkv fill "I want to [MASK] a cup of coffee."
    Example: qkv fill --model runs/encoder_en "The capital of France is <mask>."
    Example: qkv fill --model runs/encoder_en --top-k 1 < lines.txt > filled.txt
    """
    batches = given_lines(text, input_)
    _, ask, show, *_ = answering(**settings)
    answer_lines(batches, ask, show)


def load_any_encoder(folder: str, device: str, dtype: str | None) -> Encoder:
    """Load a model that must be an encoder of texts, whatever its task."""
    from qkv.convert import open_model
    from qkv.convert.model_folder import load_config
    from qkv.tasks import Encoder

    source = open_model(folder, dtype)
    task, config, _ = load_config(source)
    if config.family != "encoder":
        raise UserError(f"{folder} is no encoder; use it with `qkv {task}`.")
    if config.patch_size:
        raise UserError(f"{folder} reads images, not texts; use it with `qkv {task}`.")
    return Encoder.load(source, device)


def _as_text(filled: Filled, several: bool) -> str:
    """The whole text and, if there may be several, the candidates of each gap under it."""
    lines = [one_line(filled.text)]
    for number, candidates in enumerate(filled.masks if several else (), start=1):
        shown = (f"{one_line(best.text)} {100 * best.probability:.1f} %" for best in candidates)
        lines.append(f"  {number}: {', '.join(shown)}")
    return "\n".join(lines)


def _as_json(line: str, filled: Filled) -> str:
    masks = [[dataclasses.asdict(best) for best in candidates] for candidates in filled.masks]
    return json.dumps({"text": line, "filled": filled.text, "masks": masks}, ensure_ascii=False)
