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

    Example: qkv evaluate --model runs/multi30k --source test.en --target test.de
    """
    from qkv.data import read_lines
    from qkv.evaluate import translation_scores
    from qkv.files import write_text

    references = read_lines(target)
    if hypotheses:
        found = read_lines(hypotheses)
    elif source and model:
        found = _translate(
            read_lines(source), len(references), source, target, model, beams, device
        )
    else:
        raise UserError("Give --model and --source to translate, or --hypotheses to score a file.")
    if output:
        write_text(output, "".join(f"{line}\n" for line in found))
    scores = translation_scores(found, references, tokenize)
    if as_json:
        content = {score.name: dataclasses.asdict(score) for score in scores}
        print(json.dumps(content, ensure_ascii=False))
    else:
        for score in scores:
            print(score)


def _translate(
    sources: list[str],
    n_references: int,
    source: Path,
    target: Path,
    model: str,
    beams: int | None,
    device: str,
) -> list[str]:
    from qkv.cli.translate import progress_bar
    from qkv.tasks import load

    if len(sources) != n_references:
        raise UserError(
            f"{source} has {len(sources)} lines but {target} has {n_references}; "
            f"line n of the one must be the translation of line n of the other."
        )
    settings: dict[str, Any] = {} if beams is None else {"beams": beams, "n_best": 1}
    translator = load(model, device)
    with progress_bar(len(sources)) as advance:
        found = translator.n_best(sources, truncate=True, progress=advance, **settings)
    return [translations[0].text if translations else "" for translations in found]
