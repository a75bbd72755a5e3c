"""`qkv evaluate`: how good a model, or a file of translations, is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.errors import UserError


def evaluate(
    target: Annotated[Path, typer.Option(help="References, a line a sentence.")],
    source: Annotated[Path | None, typer.Option(help="Sources to translate.")] = None,
    model: Annotated[str | None, typer.Option(help="Model folder that translates them.")] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score these translations instead of a model's.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")] = None,
    tokenize: Annotated[
        str, typer.Option(help="sacreBLEU's tokenizer; auto: zh for Chinese, else 13a.")
    ] = "auto",
    output: Annotated[Path | None, typer.Option(help="Also write the translations here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Scores as a JSON object.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Score translations with BLEU (and its sacreBLEU signature), chrF and exact match.

    \b
    Example: qkv evaluate --model runs/multi30k --source test.en --target test.de
    """
    from qkv.cli.translate import one_line
    from qkv.data import read_lines
    from qkv.evaluate import check_tokenizer, translation_scores
    from qkv.files import write_text

    given = hypotheses or source
    if given is None or not (hypotheses or model):
        raise UserError("Give --model and --source to translate, or --hypotheses to score a file.")
    check_tokenizer(tokenize)
    lines, references = read_lines(given), read_lines(target)
    _check_aligned(given, len(lines), target, len(references))
    found = lines if hypotheses or model is None else _translate(lines, model, beams, device)
    if output:
        write_text(output, "".join(f"{one_line(line)}\n" for line in found))
    scores = translation_scores(found, references, tokenize)
    if as_json:
        content = {score.name: dataclasses.asdict(score) for score in scores}
        print(json.dumps(content, ensure_ascii=False))
    else:
        for score in scores:
            print(score)


def _check_aligned(given: Path, n_lines: int, target: Path, n_references: int) -> None:
    if n_lines != n_references:
        raise UserError(
            f"{given} has {n_lines:,} lines but {target} has {n_references:,}; "
            f"line n of the one must belong to line n of the other."
        )
    if not n_references:
        raise UserError(f"{target} holds no lines; give it at least one reference.")


def _translate(sources: list[str], model: str, beams: int | None, device: str) -> list[str]:
    from qkv.cli.translate import progress_bar
    from qkv.tasks import load

    settings: dict[str, Any] = {} if beams is None else {"beams": beams, "n_best": 1}
    translator = load(model, device)
    with progress_bar(len(sources)) as advance:
        found = translator.n_best(sources, truncate=True, progress=advance, **settings)
    return [translations[0].text if translations else "" for translations in found]
