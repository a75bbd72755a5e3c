"""`qkv evaluate`: how good a model, or a file of translations, is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.evaluate import Score
    from qkv.tasks import LanguageModel


def evaluate(
    model: Annotated[str | None, typer.Option(help="Model folder.")] = None,
    source: Annotated[Path | None, typer.Option(help="Sources to translate.")] = None,
    target: Annotated[Path | None, typer.Option(help="References, a line a sentence.")] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score these translations instead of a model's.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")] = None,
    tokenize: Annotated[
        str, typer.Option(help="sacreBLEU's tokenizer; auto: zh for Chinese, else 13a.")
    ] = "auto",
    output: Annotated[Path | None, typer.Option(help="Also write the translations here.")] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="Text to measure a language model on; repeatable.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Instructions, to be answered word for word.")
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="Labelled examples (.jsonl, .tsv) to choose answers for.")
    ] = None,
    pool: Annotated[Path | None, typer.Option(help="Where solved examples come from.")] = None,
    shots: Annotated[int, typer.Option(help="Solved examples before each question.")] = 0,
    template: Annotated[
        str, typer.Option(help="The question, like 'Review: {text} Sentiment:'.")
    ] = "",
    answer: Annotated[str, typer.Option(help="The answer after it.")] = " {label}",
    option: Annotated[list[str] | None, typer.Option(help="A possible answer; repeatable.")] = None,
    normalize: Annotated[
        str, typer.Option(help="Compare options by log P as it is (none), by tokens or bytes.")
    ] = "none",
    seed: Annotated[int, typer.Option(help="Decides which examples are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Scores as a JSON object.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Score translations, a language model's text, its answers, or its choices.

    \b
    Example: qkv evaluate --model runs/multi30k --source test.en --target test.de
    Example: qkv evaluate --model runs/shakespeare --text more.txt
    Example: qkv evaluate --model runs/instruct --records test.jsonl
    Example: qkv evaluate --model runs/gpt --examples test.jsonl --pool train.jsonl --shots 4 \\
               --template "Review: {text}\\nSentiment:" --option good --option bad
    """
    _check_one_kind(source or hypotheses, text, records, examples)
    if not (text or records or examples):
        scores = _translations(source, target, hypotheses, model, beams, tokenize, output, device)
        _print(scores, as_json)
        return
    speaker = _language_model(model, device)
    if text:
        scores = _on_text(speaker, text)
    elif records:
        scores = _on_records(speaker, records)
    elif examples:
        question, solution = (one.replace("\\n", "\n") for one in (template, answer))  # of a shell
        asked = {"template": question, "answer": solution, "options": tuple(option or ())}
        scores = _choices(speaker, examples, pool, shots, seed, normalize, asked)
    _print(scores, as_json)


def _check_one_kind(*given: object) -> None:
    """Nobody should take a score for that of a file which was not looked at."""
    if sum(map(bool, given)) > 1:
        raise UserError(
            "Translations, --text, --records and --examples are scored in different ways; give "
            "one of them at a time."
        )


def _language_model(folder: str | None, device: str) -> LanguageModel:
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


def _on_text(speaker: LanguageModel, paths: Sequence[Path]) -> list[Score]:
    """Loss, perplexity and bits a byte of whole files, each read from its beginning."""
    from qkv.data import read_lines
    from qkv.evaluate import language_scores

    found = [speaker.score("\n".join(read_lines(path))) for path in paths]
    return language_scores(
        -sum(one.log_probability for one in found),
        sum(one.n_tokens for one in found),
        sum(one.n_bytes for one in found),
    )


def _on_records(speaker: LanguageModel, path: Path) -> list[Score]:
    from qkv.data import read_records
    from qkv.run.instruct import answer_score, answered

    return [answer_score(speaker, answered(read_records([path])))]


def _choices(
    speaker: LanguageModel, examples: Path, pool: Path | None, shots: int, seed: int,
    normalize: Any, asked: dict[str, Any],
) -> list[Score]:  # fmt: skip
    """Accuracy of the likeliest option, beside that of always the commonest one."""
    from qkv.cli.translate import progress_bar
    from qkv.data import read_examples
    from qkv.evaluate import Score
    from qkv.tasks.few_shot import FewShot, few_shot_accuracy

    if normalize not in ("none", "tokens", "bytes"):
        raise UserError(f"--normalize is {normalize!r}, but must be none, tokens or bytes.")
    if not asked["options"]:
        raise UserError("Give the possible answers, each as an --option.")
    if not asked["template"]:
        raise UserError("Give the question as --template, like 'Review: {text} Sentiment:'.")
    if shots and not pool:
        raise UserError("Solved examples come from a file of their own; give it as --pool.")
    records = read_examples(examples)
    solved = read_examples(pool) if pool else []
    with progress_bar(len(records)) as advance:
        report = few_shot_accuracy(
            speaker, records, solved, FewShot(**asked), shots, seed, normalize, advance
        )
    what = f"{report.n} records, {shots} shots, seed {seed}, normalize {normalize}"
    return [
        Score("accuracy", report.accuracy, what),
        Score("always the commonest", report.majority),
    ]


def _translations(
    source: Path | None, target: Path | None, hypotheses: Path | None, model: str | None,
    beams: int | None, tokenize: str, output: Path | None, device: str,
) -> list[Score]:  # fmt: skip
    """BLEU (with its sacreBLEU signature), chrF and exact match."""
    from qkv.cli.translate import one_line
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
    from qkv.cli.translate import load_translator, progress_bar

    settings: dict[str, Any] = {} if beams is None else {"beams": beams, "n_best": 1}
    translator = load_translator(model, device)
    with progress_bar(len(sources)) as advance:
        found = translator.n_best(sources, truncate=True, progress=advance, **settings)
    return [translations[0].text if translations else "" for translations in found]
