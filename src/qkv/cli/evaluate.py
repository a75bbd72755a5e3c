"""`qkv evaluate`: how good a model, or a file of translations, is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli import evaluate_options as options
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.evaluate import Score
    from qkv.tasks import LanguageModel


def evaluate(
    model: options.Model = None,
    source: options.Source = None,
    target: options.Target = None,
    hypotheses: options.Hypotheses = None,
    beams: options.Beams = None,
    tokenize: options.Tokenize = "auto",
    output: options.Output = None,
    text: options.Text = None,
    records: options.Records = None,
    examples: options.Examples = None,
    label_field: options.LabelField = None,
    text_field: options.TextField = None,
    picture: options.Picture = None,
    pool: options.Pool = None,
    shots: options.Shots = 0,
    template: options.Template = "",
    answer: options.Answer = " {label}",
    option: options.Choice = None,
    normalize: options.Normalize = "none",
    seed: options.Seed = 0,
    as_json: options.Json = False,
    device: options.Device = "auto",
) -> None:
    """Score translations, a language model, or a model that labels, tags, answers or embeds.

    \b
    Example: qkv evaluate --model runs/multi30k --source test.en --target test.de
    Example: qkv evaluate --model runs/shakespeare --text more.txt
    Example: qkv evaluate --model runs/instruct --records test.jsonl
    Example: qkv evaluate --model runs/sst2 --examples test.tsv --picture pictures
    Example: qkv evaluate --model runs/gpt --examples test.jsonl --pool train.jsonl --shots 4 \\
               --template "Review: {text}\\nSentiment:" --option good --option bad
    """
    _check_one_kind(source or hypotheses, text, records, examples)
    choosing = {"pool": pool, "shots": shots, "template": template, "option": option}
    reading = {"label_field": label_field, "text_field": text_field, "picture": picture}
    if model and _understands(model):
        _check_idle(choosing | {"target": target, "beams": beams}, model)
        _examples(model, device, examples, reading, output, as_json)
        return
    _check_idle(reading, model)
    if not (text or records or examples):
        scores = _translations(source, target, hypotheses, model, beams, tokenize, output, device)
    else:
        _check_idle({"output": output}, model)
        asked = choosing | {"answer": answer, "normalize": normalize, "seed": seed}
        scores = _language(_speaker(model, device), text, records, examples, asked)
    _print(scores, as_json)


def _check_one_kind(*given: object) -> None:
    """Nobody should take a score for that of a file which was not looked at."""
    if sum(map(bool, given)) > 1:
        raise UserError(
            "Translations, --text, --records and --examples are scored in different ways; give "
            "one of them at a time."
        )


def _check_idle(given: Mapping[str, object], model: str | None) -> None:
    """Nor should anybody wait for what will not come."""
    for name, value in given.items():
        if value:
            what = f"{model} is {_kind(model)}" if model else "there is no --model"
            raise UserError(f"--{name.replace('_', '-')} is of no use here: {what}; leave it out.")


def _kind(model: str) -> str:
    """What a model folder holds, in words."""
    from qkv.convert import open_model
    from qkv.convert.model_folder import load_config
    from qkv.run.card import KINDS

    task, *_ = load_config(open_model(model))
    return KINDS[task][0] if task in KINDS else f"a model of the unknown task {task!r}"


def _understands(model: str) -> bool:
    from qkv.convert import open_model
    from qkv.convert.model_folder import load_config

    return load_config(open_model(model))[1].family == "encoder"


def _examples(
    model: str,
    device: str,
    examples: Path | None,
    reading: dict[str, Any],
    output: Path | None,
    as_json: bool,
) -> None:
    """Score a model that understands texts."""
    from qkv.cli.evaluate_understanding import Asked, evaluate_examples

    if not examples:
        raise UserError(f"{model} is {_kind(model)}; give what it is scored on as --examples.")
    fields = reading["label_field"], reading["text_field"] or ()
    asked = Asked(model, device, examples, *fields, picture=reading["picture"])
    evaluate_examples(asked, output, as_json)


def _language(
    speaker: LanguageModel,
    text: Sequence[Path] | None,
    records: Path | None,
    examples: Path | None,
    asked: dict[str, Any],
) -> list[Score]:
    """Score a language model."""
    from qkv.cli.evaluate_language import Questions, score_choices, score_records, score_text

    if text:
        return score_text(speaker, text)
    if records:
        return score_records(speaker, records)
    assert examples is not None
    possible = asked.pop("option") or ()
    return score_choices(speaker, examples, Questions(options=possible, **asked))


def _speaker(folder: str | None, device: str) -> LanguageModel:
    from qkv.cli.generate import load_language_model

    if not folder:
        raise UserError("Give the --model to evaluate.")
    return load_language_model(folder, device)


def _print(scores: Sequence[Score], as_json: bool) -> None:
    if as_json:
        content = {score.name: dataclasses.asdict(score) for score in scores}
        print(json.dumps(content, ensure_ascii=False))
        return
    for score in scores:
        print(score)


def _translations(
    source: Path | None,
    target: Path | None,
    hypotheses: Path | None,
    model: str | None,
    beams: int | None,
    tokenize: str,
    output: Path | None,
    device: str,
) -> list[Score]:
    """BLEU (with its sacreBLEU signature), chrF and exact match."""
    from qkv.cli.common import one_line
    from qkv.data import read_lines
    from qkv.evaluate import check_tokenizer, translation_scores
    from qkv.files import write_text

    given = hypotheses or source
    if given is None or not (hypotheses or model):
        raise UserError(
            "Give --model and --source to translate or --hypotheses to score a file; for a "
            "language model, --text, --records or --examples."
        )
    if target is None:
        raise UserError("Give the references as --target, a line for each line to be scored.")
    check_tokenizer(tokenize)
    lines, references = read_lines(given), read_lines(target)
    _check_aligned(given, len(lines), target, len(references))
    found = lines if hypotheses or model is None else _translate(lines, model, beams, device)
    if output:
        write_text(output, "".join(f"{one_line(line)}\n" for line in found))
    return translation_scores(found, references, tokenize)


def _check_aligned(given: Path, n_lines: int, target: Path, n_references: int) -> None:
    if n_lines != n_references:
        raise UserError(
            f"{given} has {n_lines:,} lines but {target} has {n_references:,}; "
            f"line n of the one must belong to line n of the other."
        )
    if not n_references:
        raise UserError(f"{target} holds no lines; give it at least one reference.")


def _translate(sources: list[str], model: str, beams: int | None, device: str) -> list[str]:
    from qkv.cli.common import progress_bar
    from qkv.cli.translate import load_translator

    settings: dict[str, Any] = {} if beams is None else {"beams": beams, "n_best": 1}
    translator = load_translator(model, device)
    with progress_bar(len(sources)) as advance:
        found = translator.n_best(sources, truncate=True, progress=advance, **settings)
    return [translations[0].text if translations else "" for translations in found]
