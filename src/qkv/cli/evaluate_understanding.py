"""`qkv evaluate` for models that understand: labels, tags, answers and likeness of examples."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.classify import as_text, load_classifier
from qkv.cli.common import by_options, check_writable, one_line, progress_bar, recipe_of
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.config import Recipe
    from qkv.evaluate import Score
    from qkv.evaluate.calibration import Calibration
    from qkv.evaluate.classification import Figures, Report
    from qkv.run.classify import Verdict

PICTURES = (".png", ".svg")
OTHER_PICTURES = (".jpg", ".jpeg", ".gif", ".pdf", ".eps", ".webp")
TABULAR = ("classify", "embed")  # tasks whose examples have columns with names
Labels = Sequence[Sequence[str]]  # of each word of each sentence


@dataclass(frozen=True)
class Asked:
    """What `qkv evaluate` was told of a model that understands, and of its examples."""

    model: str
    device: str
    examples: Path
    label_field: str | None = None
    text_fields: Sequence[str] = ()
    picture: Path | None = None

    @property
    def recipe(self) -> Recipe:
        """What the model was trained with, where that is known: it says how examples look."""
        return recipe_of(self.model)

    @property
    def fields(self) -> tuple[str, Sequence[str]]:
        """The label's field, and those of the texts."""
        data = self.recipe.data
        return self.label_field or data.label_field, self.text_fields or data.text_fields


@dataclass(frozen=True)
class Outcome:
    """How good a model is on some examples."""

    scores: list[Score]
    lines: list[str] = field(default_factory=list)  # what it said of each example
    tables: list[str] = field(default_factory=list)  # for people
    content: dict[str, Any] = field(default_factory=dict)  # for machines, beside the scores


def evaluate_examples(asked: Asked, output: Path | None, as_json: bool) -> None:
    """Score a model of understanding on examples; print, and write what is to be written."""
    from qkv.convert import open_model
    from qkv.convert.model_folder import load_config
    from qkv.files import write_text

    task, *_ = load_config(open_model(asked.model))
    if task not in SCORED:
        raise UserError(
            f"{asked.model} fills gaps, of which there are no labelled examples; training it has "
            f"measured how well, as its README.md says."
        )
    if asked.picture and asked.picture.suffix.lower() in OTHER_PICTURES:
        raise UserError(f"--picture is {asked.picture}; name a folder, or a .png or .svg file.")
    if asked.picture and task != "classify":
        raise UserError(f"--picture draws what classifiers confuse, but {asked.model} is none.")
    if output and task == "embed":
        raise UserError("--output has nothing to write of vectors; use `qkv embed --output`.")
    if (asked.label_field or asked.text_fields) and (task not in TABULAR or _sees(asked.model)):
        raise UserError(
            f"--label-field and --text-field name columns of a table, which {asked.model} is not "
            f"scored on; leave them out."
        )
    if output:
        check_writable(output)
    with by_options():
        found = SCORED[task](asked)
    if output:
        write_text(output, "".join(f"{line}\n" for line in found.lines))
    if as_json:
        scores = {score.name: dataclasses.asdict(score) for score in found.scores}
        print(json.dumps(scores | found.content, ensure_ascii=False))
        return
    print("\n".join(map(str, found.scores)))
    for table in found.tables:
        print(f"\n{table}")


def _sees(folder: str) -> bool:
    """Whether a model reads images."""
    from qkv.convert import open_model
    from qkv.convert.model_folder import load_config

    return bool(load_config(open_model(folder))[1].patch_size)


def _classes(asked: Asked) -> Outcome:
    verdict = _verdict(asked)
    report, trust = verdict.report, verdict.trust
    tables: list[str] = []
    content: dict[str, Any] = {}
    if report is not None:
        tables.append(report.table())
        content |= _report(report)
    if report is not None and report.confusion is not None:
        tables.append(report.matrix())
        content["confusion"] = {"labels": report.labels, "matrix": report.confusion.tolist()}
    if trust is not None:
        tables.append(f"It {trust.describe()}.")
        content["calibration"] = dataclasses.asdict(trust)
    if asked.picture and report is not None and trust is not None:
        _draw(report, trust, asked.picture)
    return Outcome(verdict.scores, list(map(as_text, verdict.found)), tables, content)


def _verdict(asked: Asked) -> Verdict:
    """What a classifier says of texts or images, beside what is right."""
    from qkv.data.formats.images import read_images
    from qkv.data.formats.labelled import read_labelled
    from qkv.run.classify import judge
    from qkv.run.vision import judge_images
    from qkv.tasks.vision import ImageClassifier

    classifier = load_classifier(asked.model, asked.device)
    if isinstance(classifier, ImageClassifier):
        config = classifier.model.config
        images = read_images(asked.examples, config.image_size, config.n_channels)
        with progress_bar(len(images)) as advance:
            return judge_images(classifier, images, advance)
    kind = classifier.classes.kind
    if asked.picture and kind != "class":
        raise UserError(f"{asked.model} does not give one class of several; leave --picture out.")
    examples = read_labelled([asked.examples], kind, *asked.fields)
    with progress_bar(len(examples)) as advance:
        return judge(classifier, examples, advance)


def _report(report: Report) -> dict[str, Any]:
    """Precision, recall and F1 of each class and of all, for machines."""
    classes = dict(zip(report.labels, report.classes, strict=True))
    means = {"macro": report.macro, "weighted": report.weighted}
    if report.micro is not None:
        means["micro"] = report.micro
    return {"classes": _figures(classes), "means": _figures(means)}


def _figures(named: dict[str, Figures]) -> dict[str, Any]:
    return {name: dataclasses.asdict(one) for name, one in named.items()}


def _draw(report: Report, trust: Calibration, path: Path) -> None:
    """Write two pictures to a folder; or one to a file, and the other beside it."""
    from qkv.evaluate.pictures import draw_confusion, draw_reliability

    confusion, reliability = path / "confusion.png", path / "reliability.png"
    if path.suffix.lower() in PICTURES:
        confusion, reliability = path, path.with_stem(f"{path.stem}-reliability")
    draw_confusion(report, confusion)
    draw_reliability(trust, reliability)


def _tags(asked: Asked) -> Outcome:
    from qkv.cli.tag import load_tagger
    from qkv.data.formats.conll import read_conll

    tagger, settings = load_tagger(asked.model, asked.device), asked.recipe.tag
    sentences = read_conll([asked.examples], settings.word_column, settings.label_column)
    with progress_bar(len(sentences)) as advance:
        tagged = tagger.tag([tuple(one.words) for one in sentences], advance)
    found, gold = [one.labels for one in tagged], [one.labels for one in sentences]
    scored = _types if tagger.scheme else _labels
    return scored(found, gold, [" ".join(labels) for labels in found])


def _types(found: Labels, gold: Labels, lines: list[str]) -> Outcome:
    """Entities, type by type."""
    from qkv.evaluate.entities import entity_report

    report = entity_report(found, gold)
    content = {"types": _figures(report.types), "whole": dataclasses.asdict(report.whole)}
    return Outcome(report.scores(), lines, [report.table()], content)


def _labels(found: Labels, gold: Labels, lines: list[str]) -> Outcome:
    """Labels that spell no entities, each for itself."""
    from qkv.evaluate.classification import classification_report

    ours, theirs = ([label for labels in side for label in labels] for side in (found, gold))
    report = classification_report(ours, theirs, sorted({*ours, *theirs}))
    return Outcome(report.scores(), lines, [report.table()], _report(report))


def _answers(asked: Asked) -> Outcome:
    from qkv.cli.answer import load_answerer
    from qkv.data.formats.squad import read_squad
    from qkv.evaluate.spans import answer_scores

    answerer, questions = load_answerer(asked.model, asked.device), read_squad([asked.examples])
    with progress_bar(len(questions)) as advance:
        pairs = [(one.question, one.context) for one in questions]
        found = [best[0].text for best in answerer.answers(pairs, progress=advance)]
    names = list(map(str, range(len(questions))))  # ids need not differ between files
    gold = [[answer.text for answer in one.answers] for one in questions]
    scores = answer_scores(
        dict(zip(names, found, strict=True)), dict(zip(names, gold, strict=True))
    )
    return Outcome(scores, list(map(one_line, found)))


def _likeness(asked: Asked) -> Outcome:
    from qkv.cli.fill import load_any_encoder
    from qkv.data.formats.labelled import read_texts
    from qkv.run.embed import are_pairs, retrieval_scores, uniformity

    label_field, text_fields = asked.fields
    texts = read_texts([asked.examples], text_fields, label_field)
    encoder = load_any_encoder(asked.model, asked.device)
    if are_pairs(texts):
        return Outcome(retrieval_scores(encoder, texts))
    return Outcome([uniformity(encoder, [one[0] for one in texts])])


SCORED: dict[str, Callable[[Asked], Outcome]] = {
    "classify": _classes,
    "tag": _tags,
    "answer": _answers,
    "embed": _likeness,
}
"""How a model is scored on examples, by its folder's task."""
