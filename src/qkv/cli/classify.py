"""`qkv classify`: texts or images in, their labels (or a number) with probabilities out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import (
    Advance,
    Answering,
    answer_lines,
    given_lines,
    load_as,
    named_by_options,
)
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.config import DataConfig
    from qkv.tasks import Classification, Classifier, ImageClassifier

Texts = tuple[str, ...]
Given = str | Texts  # a line, or the texts of a table's row


def answering(
    *,
    model: options.Model,
    show_all: Annotated[
        bool, typer.Option("--all", help="Every label with its probability, the likeliest first.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(help="Several classes: give those at least this probable, like 0.3."),
    ] = None,
    as_json: options.Json = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> Answering:
    """Label lines: texts, pairs with a tab between, or image files; blank lines stay blank."""
    from qkv.tasks import Classifier, ImageClassifier

    either: Any = (Classifier, ImageClassifier)
    classifier: Classifier | ImageClassifier = load_as(model, device, dtype, either, "classifier")
    kind = "class" if isinstance(classifier, ImageClassifier) else classifier.classes.kind
    if threshold is not None and isinstance(classifier, ImageClassifier):
        raise UserError(f"{model} gives an image one label; leave --threshold out.")
    if show_all and kind == "number":
        raise UserError(f"{model} gives a number and has no labels; leave --all out.")
    as_line = partial(_as_json, kind) if as_json else partial(_as_text, show_all)
    if isinstance(classifier, ImageClassifier):
        return Answering(classifier, partial(_classify_images, classifier), as_line)
    n_texts = classifier.classes.n_texts

    def ask(given: list[Given], done: int, advance: Advance | None) -> list[Classification]:
        texts = [_texts(line, n_texts, number) for number, line in enumerate(given, 1)]
        return classifier.classify(texts, threshold, advance)

    return Answering(classifier, ask, lambda line, found: as_line(_texts(line, n_texts), found))


@options.with_options_of(answering)
def classify(
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, a tab within a pair, or images; none: standard input."),
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="Instead: a file, a line a text; or .tsv, .csv, .jsonl."),
    ] = None,
    text_field: options.TextField = None,
    **settings: Any,
) -> None:
    """Label texts, pairs of texts, or image files.

    Blank lines stay blank.

    \b
    Example: qkv classify --model runs/sst2 "a gorgeous, witty film"
             positive\t0.983
    Example: qkv classify --model runs/sst2 --all < reviews.txt
    Example: qkv classify --model runs/sst2 --input reviews.csv --text-field review --json
    Example: qkv classify --model runs/digits three.png eight.png
    """
    from qkv.tasks import ImageClassifier

    classifier, ask, show, *_ = answering(**settings)
    reads_images = isinstance(classifier, ImageClassifier)
    table = not reads_images and not text and input_ is not None and _is_table(input_)
    if text_field and not table:
        raise UserError(
            "--text-field names a column of a table; leave it out, or give a table of texts as "
            "--input."
        )
    if table and input_:
        model, n_texts = settings["model"], classifier.classes.n_texts
        rows = _rows(input_, text_field or (), classifier.recipe.data, model, n_texts)
        answer_lines([rows], ask, show)
    else:
        answer_lines(given_lines(text, input_, reads_images), ask, show)


def _classify_images(
    classifier: ImageClassifier, lines: list[str], done: int, advance: Advance | None
) -> list[Classification]:
    """Label image files; blank lines stay blank."""
    from qkv.tasks import Classification

    files = [Path(line) for line in lines if line.strip()]
    found = iter(classifier.classify(files, advance))
    return [next(found) if line.strip() else Classification(()) for line in lines]


def _is_table(path: Path) -> bool:
    from qkv.data.files import kind_of
    from qkv.data.formats.records import TABLES

    return kind_of(path) in TABLES


def _rows(
    path: Path, fields: Sequence[str], data: DataConfig, model: str, n_texts: int
) -> list[Texts]:
    """The texts of a table's rows, blank ones too; its columns are those of training."""
    from qkv.data.formats.labelled import read_texts

    with named_by_options():
        if fields:
            return read_texts([path], fields, blank=True)
        found = read_texts([path], data.text_field, data.label_field, blank=True)
    if n_texts and len(found[0]) != n_texts:
        raise UserError(
            f"{path} has {len(found[0])} columns beside the label, but {model} labels "
            f"{'single texts' if n_texts == 1 else 'pairs'}; name the columns by --text-field."
        )
    return found


def _texts(given: Given, n_texts: int, number: int = 0) -> Texts:
    """Return the texts of a line, with a tab within a pair; those of a table are known."""
    if not isinstance(given, str):
        return given
    # Half of a pair may be missing, but a tab around a single text separates nothing.
    is_pair = "\t" in given.strip() or (n_texts == 2 and given.strip())
    texts = tuple(given.split("\t")) if is_pair else (given,)
    if len(texts) > (n_texts or 2):
        raise UserError(
            f"Text {number} holds {len(texts)} texts with tabs between; give one text"
            f"{'' if n_texts == 1 else ', or a pair'}, or a table as --input."
        )
    return texts


def as_text(found: Classification, show_all: bool = False) -> str:
    """The labels of a text, a tab and the probability of each; or its number; or nothing."""
    probable = found.probabilities
    if not probable:
        return found.label
    if show_all:
        labels = sorted(probable, key=lambda label: -probable[label])
        return "\t".join(f"{label}\t{probable[label]:.3f}" for label in labels)
    return f"{found.label}\t{'|'.join(f'{probable[label]:.3f}' for label in found.labels)}"


def _as_text(show_all: bool, given: Given, found: Classification) -> str:
    return as_text(found, show_all)


def _as_json(kind: str, given: Given, found: Classification) -> str:
    content: dict[str, Any] = {"image": given} if isinstance(given, str) else {"texts": given}
    if not isinstance(given, str) and len(given) == 1:
        content = {"text": given[0]}
    if kind == "number":
        content |= {"value": found.value}
    elif kind == "classes":
        content |= {"labels": found.labels, "probabilities": found.probabilities}
    else:
        content |= {"label": found.label or None, "probability": found.probability}
        content |= {"probabilities": found.probabilities}
    return json.dumps(content, ensure_ascii=False)
