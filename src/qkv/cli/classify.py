"""`qkv classify`: texts in, their labels (or a number) with probabilities out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.common import by_options, given_lines, load_as, progress_bar, recipe_of
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.tasks import Classification, Classifier
    from qkv.tasks.vision import ImageClassifier

Texts = tuple[str, ...]


def classify(
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, a tab within a pair, or images; none: standard input."),
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder, GGUF file or pulled name.")] = ...,  # type: ignore[assignment]
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="Instead: a file, a line a text; or .tsv, .csv, .jsonl."),
    ] = None,
    text_field: Annotated[
        list[str] | None,
        typer.Option(help="The text's column or key in --input; twice for a pair."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Every label with its probability, the likeliest first.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(help="Several classes: give those at least this probable, like 0.3."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Label texts, pairs of texts, or image files; blank lines stay blank, in their place.

    \b
    Example: qkv classify --model runs/sst2 "a gorgeous, witty film"
             positive\t0.983
    Example: qkv classify --model runs/sst2 --all < reviews.txt
    Example: qkv classify --model runs/sst2 --input reviews.csv --text-field review --json
    Example: qkv classify --model runs/digits three.png eight.png
    """
    from qkv.data.files import kind_of
    from qkv.data.formats.records import TABLES
    from qkv.tasks.vision import ImageClassifier

    classifier = load_classifier(model, device)
    if isinstance(classifier, ImageClassifier):
        _check_kind(model, "class", threshold, show_all)
        if text_field:
            raise UserError(f"{model} labels images; leave --text-field out.")
        _classify_images(classifier, given_lines(text, input_), show_all, as_json)
        return
    kind = classifier.classes.kind
    _check_kind(model, kind, threshold, show_all)
    if input_ and not text and kind_of(input_) in TABLES:
        texts = _rows(input_, text_field or (), model, classifier.classes.n_texts)
    elif text_field:
        raise UserError("--text-field names a column of a table; give one as --input.")
    else:
        texts = _texts(given_lines(text, input_), classifier.classes.n_texts)
    whole = [one for one in texts if any(one)]
    with progress_bar(len(whole)) as advance:
        found = iter(classifier.classify(whole, threshold, advance))
    for one in texts:
        said = next(found) if any(one) else None
        print(_as_json(one, said, kind) if as_json else as_text(said, show_all))


def load_classifier(folder: str, device: str) -> Classifier | ImageClassifier:
    """Load a model folder that must hold a classifier, of texts or of images."""
    from qkv.tasks import Classifier
    from qkv.tasks.vision import ImageClassifier

    return load_as(folder, device, (Classifier, ImageClassifier), "classifier")


def _classify_images(
    classifier: ImageClassifier, paths: list[str], show_all: bool, as_json: bool
) -> None:
    """Label image files, a line each."""
    files = [Path(path.strip()) for path in paths if path.strip()]
    with progress_bar(len(files)) as advance:
        found = iter(classifier.classify(files, advance))
    for path in paths:
        said = next(found) if path.strip() else None
        content = {"image": path.strip()} | _as_object(said, "class")
        print(json.dumps(content, ensure_ascii=False) if as_json else as_text(said, show_all))


def _rows(path: Path, fields: Sequence[str], model: str, n_texts: int) -> list[Texts]:
    """The texts of a table's rows, blank ones too; its columns are those of training."""
    from qkv.data.formats.labelled import read_texts

    with by_options():
        if fields:
            return read_texts([path], fields, blank=True)
        data = recipe_of(model).data
        found = read_texts([path], data.text_fields, data.label_field, blank=True)
    if n_texts and len(found[0]) != n_texts:
        raise UserError(
            f"{path} has {len(found[0])} columns beside the label, but {model} labels "
            f"{'single texts' if n_texts == 1 else 'pairs'}; say by --text-field what to label."
        )
    return found


def _texts(lines: Sequence[str], n_texts: int) -> list[Texts]:
    """Texts and pairs in their order; what is blank is of empty ones."""
    # Half of a pair may be missing, but a tab at the end of a text means nothing.
    whole = [line if n_texts == 2 and line.strip() else line.strip() for line in lines]
    found = [tuple(part.strip() for part in line.split("\t")) for line in whole]
    for number, one in enumerate(found, start=1):
        if len(one) > 2:
            raise UserError(
                f"Line {number} holds {len(one)} texts with tabs between; give one text, or a pair."
            )
    return found


def _check_kind(folder: str, kind: str, threshold: float | None, show_all: bool) -> None:
    if threshold is not None and kind != "classes":
        answer = "a number" if kind == "number" else "the one likeliest class"
        raise UserError(f"{folder} gives {answer}; --threshold is for several classes at once.")
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"--threshold is {threshold}, but must be a probability, from 0 to 1.")
    if show_all and kind == "number":
        raise UserError(f"{folder} gives a number and has no labels; leave --all out.")


def as_text(found: Classification | None, show_all: bool = False) -> str:
    """What is said of one text: its labels, a tab and how probable each is; or a number."""
    if found is None:
        return ""
    if found.value is not None:
        return found.label
    chances = found.probabilities
    if show_all:
        labels = sorted(chances, key=lambda label: -chances[label])
        return "\t".join(f"{label}\t{chances[label]:.3f}" for label in labels)
    return f"{found.label}\t{'|'.join(f'{chances[label]:.3f}' for label in found.labels)}"


def _as_json(texts: Texts, found: Classification | None, kind: str) -> str:
    content: dict[str, Any] = {"text": texts[0]} if len(texts) == 1 else {"texts": texts}
    return json.dumps(content | _as_object(found, kind), ensure_ascii=False)


def _as_object(found: Classification | None, kind: str) -> dict[str, Any]:
    """What is said of one text, for machines; of a blank one, that there is nothing to say."""
    if kind == "number":
        return {"value": found.value if found else None}
    chances = found.probabilities if found else {}
    if kind == "classes":
        return {"labels": found.labels if found else (), "probabilities": chances}
    label, probability = (found.label, found.probability) if found else (None, None)
    return {"label": label, "probability": probability, "probabilities": chances}
