"""`qkv inspect`: show what happened inside a model that reads a text."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import check_writable, stdin_chunks
from qkv.config.fields import suggestion
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.inspect import Trace
    from qkv.inspect.answers.answer import Answer, Question

PICTURES = (".png", ".svg", ".pdf")
ENDINGS = (*PICTURES, ".html", ".json", ".npz")
USUAL = ("flow", "steps", "attention")
KINDS = ("encoder", "masked", "cross")

Strings = list[str] | None
Integers = list[int] | None
Model = Annotated[
    str,
    typer.Argument(
        help="Model folder, GGUF file, or packaged or pulled name; for curves a run folder."
    ),
]
Source = Annotated[
    Strings,
    typer.Option(
        help="Text (or path of an image) to read; default: standard input. Several texts become "
        "one batch, for the views mask and word."
    ),
]
Target = Annotated[
    str | None, typer.Option(help="Expected output: a text, a label, the labels of the words.")
]
Second = Annotated[
    str | None, typer.Option(help="Second text of a pair, or the question to a model that answers.")
]
View = Annotated[
    Strings,
    typer.Option(
        help="flow, steps, attention, hand, mask, shift, lens, drift, contributions, neurons, "
        "roles, attribution (more reliable than rollout), rollout, beam, word, compare, positions, "
        "embeddings, curves or all; repeatable."
    ),
]
Layer = Annotated[Integers, typer.Option(help="This layer only; repeatable for attention.")]
Head = Annotated[Integers, typer.Option(help="This head only; repeatable for attention.")]
Token = Annotated[
    str | None,
    typer.Option(help="The token that hand and contributions are about: its name or position."),
]
Silence = Annotated[
    Strings,
    typer.Option(
        metavar="KEY[:HEAD]", help="Set a quantity, or one head of it, to 0 first; repeatable."
    ),
]
Patch = Annotated[
    Strings,
    typer.Option(
        metavar="KEY[:HEAD]=TEXT",
        help="Take a quantity, or one head of it, from a pass over another text; repeatable.",
    ),
]
Language = Annotated[
    str, typer.Option(metavar="en|zh", help="Language of titles, explanations and labels.")
]
Attention = Annotated[
    str | None, typer.Option(metavar="encoder|masked|cross", help="Only this kind of attention.")
]
Beams = Annotated[int | None, typer.Option(min=1, help="Number of beams in the beam view.")]
Top = Annotated[int, typer.Option(min=1, help="Number of candidates or neighbours to show.")]
Word = Annotated[
    Strings,
    typer.Option(help="Word to find the neighbours of, or to follow through several texts."),
]
With = Annotated[
    Strings,
    typer.Option(
        "--with", help="Another run whose curves to add (repeatable), or the model to compare with."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Write a figure (.png, .svg, .pdf), page (.html) or numbers (.json, .npz)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object.")]


def inspect(
    model: Model,
    source: Source = None,
    target: Target = None,
    second: Second = None,
    view: View = None,
    layer: Layer = None,
    head: Head = None,
    token: Token = None,
    silence: Silence = None,
    patch: Patch = None,
    attention: Attention = None,
    beams: Beams = None,
    top: Top = 5,
    word: Word = None,
    with_: With = None,
    language: Language = "en",
    out: Out = None,
    as_json: AsJson = False,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> None:
    """Look inside: attention, probabilities, shapes, and more.

    \b
    Example: qkv inspect runs/demo --source 我爱你
    Example: qkv inspect runs/demo --source 我爱你 --view attention --attention cross --out map.svg
    Example: qkv inspect runs/demo --source 我爱你 --view all --out inside.html
    Example: qkv inspect smollm2 --source "The capital of France is" --view lens --top 3
    Example: qkv inspect runs/demo --view curves --with runs/other --out curves.png
    Example: qkv inspect zh-en --source 我爱你 --view hand --token 爱 --layer 0 --head 1
    Example: qkv inspect zh-en --source 我爱你 --view steps --silence decoder.1.cross_attention:2
    Example: qkv inspect zh-en --source 我爱你 --language zh --out inside.html
    """
    from qkv.inspect.answers.answer import Question
    from qkv.inspect.draw.language import language as in_language

    _check(view, attention, with_, language)
    _check_out(out, as_json)
    names = _names(view or (["embeddings"] if word and not source else []))
    question = Question(
        name=Path(model).name,
        token=token or "",
        layers=tuple(layer or ()),
        heads=tuple(head or ()),
        attention=attention or "",
        beams=beams,
        top=top,
        words=tuple(word or ()),
        remark=cache(_remark),  # each once
    )
    texts = _texts(source, names)
    reading = _Reading(texts, target, second, silence or [], patch or [], device, dtype)
    with in_language(language):
        question = _open(question, model, names, reading, with_ or [])
        if out is not None and out.suffix.lower() == ".npz":
            _save(question, out)
        else:
            _show(model, _chosen(names, question, out), question, out, as_json)


@dataclass(frozen=True)
class _Reading:
    """The texts that models read, the changes to their passes, and where they run."""

    texts: Sequence[str]
    target: str | None
    second: str | None
    silence: Sequence[str]
    patch: Sequence[str]
    device: str
    dtype: str | None

    def trace(self, task: Any) -> Trace | None:
        """Trace the texts in a model, with the changes."""
        if not self.texts:
            if self.silence or self.patch:
                raise UserError("--silence and --patch change how a text is read; add --source.")
            return None
        trace = _trace(task, self.texts, self.target, self.second)
        for given in self.silence:
            trace = trace.silence(*_part(given, "--silence", "KEY or KEY:HEAD"))
        for given in self.patch:
            place, equals, text = given.partition("=")
            if not equals or not text.strip():
                raise UserError(
                    f"--patch {given!r} has no text to take the quantity from; write "
                    "KEY=TEXT or KEY:HEAD=TEXT."
                )
            key, head = _part(place, "--patch", "KEY=TEXT or KEY:HEAD=TEXT")
            other = _trace(task, [text], self.target, self.second)
            trace = trace.patch(other, key, head=head)
        return trace


def _part(given: str, option: str, form: str) -> tuple[str, int | None]:
    """Split KEY:HEAD."""
    key, colon, head = given.partition(":")
    if colon and not head.isdigit():
        raise UserError(f"{option} {given!r}: a head is a number from 0 on; write {form}.")
    return key, int(head) if colon else None


def _names(asked: Sequence[str]) -> list[str]:
    """Return the named views in the order of the table; `all` names every one."""
    from qkv.inspect.views import VIEWS

    return list(VIEWS) if "all" in asked else [name for name in VIEWS if name in asked]


def _check(view: Strings, attention: str | None, with_: Strings, language: str) -> None:
    """Find mistakes before anything is loaded."""
    from qkv.inspect.draw.language import LANGUAGES
    from qkv.inspect.views import VIEWS

    if language not in LANGUAGES:
        raise UserError(f"Unknown language {language!r}; there are {' and '.join(LANGUAGES)}.")

    for name in view or ():
        if name not in (*VIEWS, "all"):
            raise UserError(f"There is no view {name!r}{suggestion(name, (*VIEWS, 'all'))}")
    if attention is not None and attention not in KINDS:
        raise UserError(f"Unknown attention {attention!r}; there are {', '.join(KINDS)}.")
    if with_ and view and not {"curves", "compare", "all"} & {*view}:
        raise UserError(
            "--with adds the curves of another run or a model to compare with; add --view curves "
            "or --view compare."
        )


def _check_out(out: Path | None, as_json: bool) -> None:
    """Find mistakes about the file to write."""
    if out is None:
        return
    if as_json:
        raise UserError("--json prints numbers and --out writes a file; give one of the two.")
    if out.suffix.lower() not in ENDINGS:
        raise UserError(
            f"{out} ends in {out.suffix or 'nothing'}, but views are written as "
            f"{', '.join(ENDINGS)}; choose one of these endings."
        )
    check_writable(out)


def _texts(source: Strings, names: Sequence[str]) -> list[str]:
    """The given texts, or a piped one if the views need a text."""
    from qkv.inspect.views import VIEWS

    if source or (names and not any(VIEWS[name].needs_text for name in names)):
        return list(source or ())
    if sys.stdin is None or sys.stdin.isatty():
        return []
    piped = "".join(stdin_chunks()).strip("\n")
    return [piped] if piped else []


def _open(
    question: Question, name: str, views: Sequence[str], reading: _Reading, others: Sequence[str]
) -> Question:
    """Load what the views need: logs, a model, a trace, a second model."""
    from qkv.inspect.answers.curves import read_logs, read_smoothings
    from qkv.inspect.answers.embeddings import vocabularies
    from qkv.inspect.draw.language import localized
    from qkv.tasks import load

    comparing = "compare" in views and "curves" not in views
    runs_given = [] if comparing else [Path(other) for other in others]
    folders = _run_folders(name, runs_given, required=views == ["curves"])
    question = replace(question, runs=read_logs(folders), smoothing=read_smoothings(folders))
    text = reading.texts or None
    runs = question.runs
    no_text = (
        "There is no text to read, and only the views positions, embeddings and curves need none"
    )
    if views == ["curves"] or (not views and text is None and runs):
        if not views:
            _remark(localized(f"{no_text}; these are the training curves."))
        return question
    if text is None and not ({"positions", "embeddings", "curves"} & {*views}):
        raise UserError(f"{no_text}; give one with --source.")
    task = load(name, reading.device, reading.dtype)
    trace = reading.trace(task)
    if comparing and others:
        second = load(others[0], reading.device, reading.dtype)
        other = replace(reading, silence=(), patch=()).trace(second)
        question = replace(question, other=other, other_name=Path(others[0]).name)
    return replace(question, model=task.model, trace=trace, vocabularies=vocabularies(task))


def _run_folders(name: str, others: Sequence[Path], required: bool) -> list[Path]:
    """The folders of this run, if it has a log or must have one, and of others."""
    from qkv.shelf import find_model, split_adapter

    base, adapter = split_adapter(name)
    folder = adapter or (Path(base) if Path(base).is_dir() else find_model(base))
    if not (required or others or (folder / "log.jsonl").is_file()):
        return []
    if folder.is_file() and folder.suffix == ".gguf":
        raise UserError(
            f"{name} is a model without a training log, so there are no curves; name a run folder."
        )
    return [folder, *others]


def _trace(task: Any, texts: Sequence[str], target: str | None, second: str | None) -> Trace:
    """Trace one text or several, or a pair if the task reads two."""
    from qkv.tasks import Answerer, Classifier, ImageClassifier, Tagger

    text = texts[0]
    source: Any = text
    if len(texts) > 1:
        if isinstance(task, Answerer | ImageClassifier | Tagger) or second is not None:
            raise UserError("This model is looked into with one --source at a time; give one.")
        if target is not None:
            raise UserError("--target is for one --source; leave out one or the other.")
        source = list(texts)
    if isinstance(task, Answerer):
        if second is None:
            raise UserError(
                "This model finds answers in a text; give the text as --source and the question "
                "as --second."
            )
        source = (second, text)
    elif second is not None:
        if not isinstance(task, Classifier):
            raise UserError("--second is for models that read two texts; leave it out.")
        source = (text, second)
    expected = target.split() if isinstance(task, Tagger) and target is not None else target
    try:
        trace: Trace = task.trace(source, expected)
    except UserError as error:  # this command does not cut texts
        raise UserError(re.sub(r", or cut it off with [^ ]+$", ".", str(error))) from error
    return trace


def _save(question: Question, out: Path) -> None:
    if question.trace is None:
        raise UserError(f"{out} is for a trace, which needs a text; give one with --source.")
    arrays = question.trace.save(out)
    print(arrays)
    print(arrays.with_suffix(".json"))


def _chosen(names: list[str], question: Question, out: Path | None) -> list[str]:
    """Check the named views, or choose those that suit the model and the form."""
    from qkv.inspect.views import VIEWS, applicable, check

    if names and len(names) < len(VIEWS):
        needing = [name for name in names if VIEWS[name].needs_text]
        if needing and question.trace is None:
            raise UserError(f"The view {needing[0]} needs a text; give one with --source.")
        check(names, question)
        return names
    if not names and question.trace is None:
        return ["curves"]
    page = out is not None and out.suffix.lower() == ".html"
    return applicable(VIEWS if names or page else USUAL, question)


def _show(
    model: str, names: list[str], question: Question, out: Path | None, as_json: bool
) -> None:
    from qkv.files import write_json, write_text
    from qkv.inspect.views import VIEWS, report_numbers, report_page

    ending = out.suffix.lower() if out else ""
    if out is None and not as_json:
        _print(names, question)
        return
    answers = {name: VIEWS[name].answer(question) for name in names}
    if out is None:
        print(json.dumps(report_numbers(model, question, answers), ensure_ascii=False))
    elif ending in PICTURES:
        _draw(answers, out)
    else:
        if ending == ".html":
            write_text(out, report_page(Path(model).name, question, answers))
        else:
            write_json(out, report_numbers(model, question, answers))
        print(out)


def _draw(answers: dict[str, Answer], out: Path) -> None:
    """Write a picture per view; several get the names of their views."""
    from qkv.inspect.draw.figure import save_figure
    from qkv.inspect.draw.fonts import chinese_font
    from qkv.inspect.draw.language import current_language, language, localized

    if current_language() == "zh" and out.suffix.lower() != ".svg" and chinese_font() is None:
        remark = (
            "no font here has Chinese characters, so figures are labelled in English; install one "
            "(Debian and Ubuntu: fonts-noto-cjk) or write .svg or .html"
        )
        _remark(localized(remark))
        with language("en"):
            _draw(answers, out)
        return
    for name, answer in answers.items():
        path = out if len(answers) == 1 else out.with_name(f"{out.stem}-{name}{out.suffix}")
        note = save_figure(answer.draw(), path)
        print(path)
        if note:
            _remark(f"{path.name}: {note}")


def _print(names: list[str], question: Question) -> None:
    from rich.console import Console
    from rich.text import Text

    from qkv.inspect.draw.labels import wrapped
    from qkv.inspect.draw.language import localized
    from qkv.inspect.views import VIEWS

    console = Console(highlight=False)
    for name in names:
        view = VIEWS[name]
        parts = list(view.answer(question).text(console.width))
        console.print(Text(localized(view.title), style="bold"))
        about = wrapped(localized(view.about), console.width)
        console.print(Text(about, style="dim"), end="\n\n")
        for part in parts:
            console.print(part, markup=False)
        console.print()


def _remark(text: str) -> None:
    typer.echo(f"· {text}", err=True)
