"""`qkv evaluate`: how good a model, or a file of translations, is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.classify import as_text
from qkv.cli.common import check_writable, counting_bar, named_by_options, one_line
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.evaluation import Evaluation

PICTURES = (".png", ".svg")
OTHER_PICTURES = (".jpg", ".jpeg", ".gif", ".pdf", ".eps", ".webp")
FEW_SHOT = ("template", "answer", "option", "pool", "shots", "normalize", "seed")
SIDES = ("source", "target")
PAIRS = ("pairs", "source_field", "target_field")
SEARCH = ("beams", "tokenize", "output")
USED = {
    "translate": (*SIDES, *PAIRS, *SEARCH),
    "generate": ("text", "text_field", "records", "examples", *FEW_SHOT),
    "classify": ("examples", "label_field", "text_field", "picture", "output"),
    "tag": ("examples", "output"),
    "answer": ("examples", "output"),
    "embed": ("examples", "label_field", "text_field"),
    "fill": ("text", "text_field"),
}
"""The options that a model is evaluated by, by its task."""


def evaluate(
    model: options.OptionalModel = None,
    source: Annotated[Path | None, typer.Option(help="Sources to translate.")] = None,
    target: Annotated[Path | None, typer.Option(help="References, a line a sentence.")] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Instead: a file of both sides (.tsv, .csv, .jsonl …).")
    ] = None,
    source_field: Annotated[
        str | None, typer.Option(help="Column or key of the source in it, if not as in training.")
    ] = None,
    target_field: Annotated[
        str | None, typer.Option(help="Column or key of the target, likewise.")
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score these translations instead of a model's.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")] = None,
    tokenize: Annotated[
        str, typer.Option(help="sacreBLEU's tokenizer; auto: zh for Chinese, else 13a.")
    ] = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Also write the translations, labels or answers here.")
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text to measure a language model on, or an encoder that fills gaps; repeatable."
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Instructions, to be answered word for word; or preferences (chosen, rejected)."
        ),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="Examples as for training, with their labels, tags or answers; for a language "
            "model, labelled ones (.jsonl, .tsv) to choose answers for."
        ),
    ] = None,
    label_field: Annotated[
        str | None, typer.Option(help="Column or key of the label, if not as in training.")
    ] = None,
    text_field: options.TextField = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw a classifier's confusions and reliability into this folder."),
    ] = None,
    pool: Annotated[Path | None, typer.Option(help="File of solved examples.")] = None,
    shots: Annotated[int, typer.Option(help="Solved examples before each question.")] = 0,
    template: Annotated[
        str, typer.Option(help="The question, like 'Review: {text} Sentiment:'.")
    ] = "",
    answer: Annotated[str, typer.Option(help="The answer after it.")] = " {label}",
    option: Annotated[list[str] | None, typer.Option(help="A possible answer; repeatable.")] = None,
    normalize: Annotated[
        str, typer.Option(help="Compare options by log-probability (none), by tokens or bytes.")
    ] = "none",
    seed: Annotated[int, typer.Option(help="Decides which examples are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Scores as a JSON object.")] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> None:
    """Score a model of any task.

    Translations, a language model, or a model that labels, tags, answers, embeds or fills gaps.

    With weights in int8 or int4, it also says by how much each score differs from float32's.

    \b
    Example: qkv evaluate --model runs/multi30k --source test.en --target test.de
    Example: qkv evaluate --model runs/mine --pairs test.tsv
    Example: qkv evaluate --model runs/shakespeare --text more.txt
    Example: qkv evaluate --model runs/instruct --records test.jsonl
    Example: qkv evaluate --model runs/encoder --text more.txt
    Example: qkv evaluate --model runs/sst2 --examples test.tsv --picture pictures
    Example: qkv evaluate --model runs/gpt --examples test.jsonl --pool train.jsonl --shots 4 \\
               --template "Review: {text}\\nSentiment:" --option good --option bad
    """
    given = options.differing(evaluate, locals(), ("model", "as_json", "device", "dtype"))
    if output:
        check_writable(output)
    with named_by_options():
        if hypotheses:
            found = _score_file(given)
        elif model:
            found = _score_model(model, device, dtype, given)
        else:
            raise UserError("Give the --model to evaluate, or --hypotheses to score a file.")
    if output and found.outputs is not None:
        _write(output, found.outputs)
    print(json.dumps(found.to_dict(), ensure_ascii=False) if as_json else found)


def _score_file(given: dict[str, Any]) -> Evaluation:
    _check_used(given, ("hypotheses", "target", "tokenize", "output"), "a file is scored")
    from qkv.data import read_pairs
    from qkv.evaluation import Evaluation, translation_scores

    if "target" not in given:
        raise UserError("Give the references as --target, a line for each line to be scored.")
    found, references = zip(*read_pairs(given["hypotheses"], given["target"]), strict=True)
    return Evaluation(translation_scores(found, references, given.get("tokenize", "auto")), found)


def _score_model(folder: str, device: str, dtype: str | None, given: dict[str, Any]) -> Evaluation:
    from qkv.config import TASKS
    from qkv.convert import open_model
    from qkv.convert.model_folder import load_config
    from qkv.evaluation import evaluate as score
    from qkv.tasks import load

    source = open_model(folder, dtype)
    task, config, _ = load_config(source)
    what = f"{folder} is {TASKS[task].about if task in TASKS else f'a model of the task {task!r}'}"
    if task not in USED:
        raise UserError(
            f"{what}, which is not scored here; models that can be are of the tasks "
            f"{', '.join(USED)}."
        )
    used = [name for name in USED[task] if not (config.patch_size and name.endswith("_field"))]
    _check_used(given, used, what)
    data, settings = _data_and_settings(task, given, folder, what)
    if "picture" in given:
        _check_picture(given["picture"], folder, source.content)
    loaded = load(source, device)
    if task == "fill":
        settings["mask"] = loaded.recipe.mask
    with counting_bar() as progress:
        found = score(loaded, data, progress=progress, **settings)
    if dtype in ("int8", "int4"):
        floats = load(open_model(source, "fp32"), device)
        with counting_bar() as progress:
            found = found.against(score(floats, data, progress=progress, **settings), "fp32")
    if "picture" in given:
        _draw(found, given["picture"])
    return found


def _check_used(given: Iterable[str], used: Sequence[str], what: str) -> None:
    """Reject options that have no effect for this model."""
    for name in given:
        if name not in used:
            known = ", ".join(map(_option, used))
            raise UserError(
                f"{_option(name)} has no effect here: {what}; leave it out, and use {known}."
            )


def _kept(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _data_and_settings(
    task: str, given: dict[str, Any], folder: str, what: str
) -> tuple[Any, dict[str, Any]]:
    """What `qkv.evaluate` is called with."""
    if read := {"translate": _of_pairs, "generate": _of_language, "fill": _of_gaps}.get(task):
        return read(given, folder, what)
    if "examples" not in given:
        raise UserError(f"{what}; give what it is scored on as --examples.")
    return given["examples"], _kept(given, ("label_field", "text_field"))


def _of_pairs(given: dict[str, Any], folder: str, what: str) -> tuple[Any, dict[str, Any]]:
    """Two line-aligned files, or one of both sides."""
    settings = _kept(given, ("beams", "tokenize"))
    if "pairs" in given:
        _check_used(given, (*PAIRS, *SEARCH), f"{what}, scored on --pairs")
        return given["pairs"], settings | _kept(given, PAIRS[1:])
    if not set(SIDES) <= given.keys():
        raise UserError(
            f"{what}; give the text to translate as --source and the references as --target, or "
            f"one file of both as --pairs."
        )
    _check_used(given, (*SIDES, *SEARCH), f"{what}, scored on --source and --target")
    return (given["source"], given["target"]), settings


def _of_gaps(given: dict[str, Any], folder: str, what: str) -> tuple[Any, dict[str, Any]]:
    """Documents; what is masked in them is as in the run that made the model."""
    if "text" not in given:
        raise UserError(f"{what}; give the text whose tokens are masked and predicted as --text.")
    return given["text"], _kept(given, ("text_field",))


def _of_language(given: dict[str, Any], folder: str, what: str) -> tuple[Any, dict[str, Any]]:
    from qkv.data import hold_preferences, read_conversations, read_preferences
    from qkv.tasks.few_shot import FewShot

    kinds = [name for name in ("text", "records", "examples") if name in given]
    if len(kinds) != 1:
        raise UserError(f"{what}; give one of --text, --records and --examples at a time.")
    if "examples" not in given:
        used = [*kinds, "text_field"] if "text" in given else kinds
        _check_used(given, used, f"{what}, scored on {_option(kinds[0])}")
        if "records" in given:
            files = [given["records"]]
            return (read_preferences if hold_preferences(files) else read_conversations)(files), {}
        return given["text"], {"text_field": given.get("text_field", ())}
    if given.get("normalize", "none") not in ("none", "tokens", "bytes"):
        raise UserError(
            f"--normalize is {given['normalize']!r}, but must be none, tokens or bytes."
        )
    if "option" not in given:
        raise UserError("Give the possible answers, each as an --option.")
    if "template" not in given:
        raise UserError("Give the question as --template, like 'Review: {text} Sentiment:'.")
    if "shots" in given and "pool" not in given:
        raise UserError("Solved examples come from a file of their own; give it as --pool.")
    template, answer = (
        text.replace("\\n", "\n") for text in (given["template"], given.get("answer", " {label}"))
    )
    few_shot = FewShot(template, answer, options=tuple(given["option"]))
    settings = _kept(given, ("pool", "shots", "seed", "normalize"))
    return given["examples"], {**settings, "few_shot": few_shot}


def _check_picture(path: Path, folder: str, content: Mapping[str, Any]) -> None:
    if path.suffix.lower() in OTHER_PICTURES:
        raise UserError(f"--picture is {path}; name a folder, or a .png or .svg file.")
    if content.get("classify", {}).get("kind", "class") != "class":
        raise UserError(f"{folder} does not give one class of several; leave --picture out.")


def _draw(found: Evaluation, path: Path) -> None:
    """Write two pictures to a folder; or one to a file, and the other beside it."""
    from qkv.evaluation.classification import ClassReport
    from qkv.evaluation.pictures import draw_confusion, draw_reliability

    confusion, reliability = path / "confusion.png", path / "reliability.png"
    if path.suffix.lower() in PICTURES:
        confusion, reliability = path, path.with_stem(f"{path.stem}-reliability")
    assert isinstance(found.report, ClassReport) and found.calibration is not None
    draw_confusion(found.report, confusion)
    draw_reliability(found.calibration, reliability)


def _write(path: Path, outputs: Sequence[Any]) -> None:
    """Write a line for each example: its translation or answer, its label, or its words' labels."""
    from qkv.files import write_text
    from qkv.tasks import Classification, Tagging

    lines = [
        as_text(output)
        if isinstance(output, Classification)
        else " ".join(output.labels)
        if isinstance(output, Tagging)
        else one_line(output)
        for output in outputs
    ]
    write_text(path, "".join(f"{line}\n" for line in lines))
