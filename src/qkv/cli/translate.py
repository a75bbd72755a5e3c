"""`qkv translate`: lines in, lines out, order kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.common import load_as, one_line, progress_bar, read_stdin
from qkv.errors import UserError

FOR_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")

if TYPE_CHECKING:
    from qkv.tasks import Translation, Translator


def translate(
    text: Annotated[
        list[str] | None, typer.Argument(help="Sentences; none: lines of standard input.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder, GGUF file or pulled name.")] = ...,  # type: ignore[assignment]
    beams: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 1 favours length.")] = None,
    n_best: Annotated[int | None, typer.Option(help="Translations for each line.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest output in tokens.")] = None,
    min_length: Annotated[int | None, typer.Option(help="Fewest tokens before the end.")] = None,
    no_repeat: Annotated[int | None, typer.Option(help="No run of so many tokens twice.")] = None,
    prefix: Annotated[str, typer.Option(help="How each translation must begin.")] = "",
    sample: Annotated[bool, typer.Option("--sample", help="Draw at random.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample among those that sum to p.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Sample among those near the top.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut over-long lines.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Translate sentences or lines; blank lines stay blank, in their place.

    \b
    Example: qkv translate --model runs/demo 我爱你
    Example: qkv translate --model runs/demo < lines.zh > lines.en
    """
    settings = {
        "beams": beams,
        "length_penalty": length_penalty,
        "n_best": n_best,
        "seed": seed,
        "max_length": max_length,
        "min_length": min_length,
        "no_repeat": no_repeat,
        "sample": sample or None,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    idle = [name for name in FOR_SAMPLING if name in settings and not sample]
    if idle:
        raise UserError(f"--{idle[0].replace('_', '-')} is about random draws; add --sample.")
    lines = text if text else read_stdin()
    translator = load_translator(model, device)
    with progress_bar(len(lines)) as advance:
        found = translator.n_best(
            lines, prefix=prefix, truncate=truncate, progress=advance, **settings
        )
    for line, translations in zip(lines, found, strict=True):
        print(_as_json(line, translations) if as_json else _as_text(translations))


def load_translator(folder: str, device: str) -> Translator:
    """Load a model folder that must hold a translator."""
    from qkv.tasks import Translator

    return load_as(folder, device, Translator, "translator")


def _as_text(translations: Sequence[Translation]) -> str:
    """The translation alone; several as lines of score and text; none as a blank line."""
    if len(translations) > 1:
        return "\n".join(f"{found.score:.4f}\t{one_line(found.text)}" for found in translations)
    return one_line(translations[0].text) if translations else ""


def _as_json(line: str, translations: Sequence[Translation]) -> str:
    best: dict[str, Any] = {"source": line, "translation": ""}
    if translations:
        best |= {"translation": translations[0].text, "score": translations[0].score}
    if len(translations) > 1:
        best["n_best"] = [{"translation": t.text, "score": t.score} for t in translations]
    return json.dumps(best, ensure_ascii=False)
