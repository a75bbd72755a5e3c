"""`qkv inspect`: a model and a text in, what happened inside out."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.common import check_writable, read_stdin
from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.inspect.curves import Record
    from qkv.inspect.panes import Pane, Subject, Vocabulary, Wish
    from qkv.inspect.trace import Trace

PICTURES = (".png", ".svg", ".pdf")
ENDINGS = (*PICTURES, ".html", ".json", ".npz")
USUAL = ("flow", "steps", "attention")
KINDS = ("encoder", "masked", "cross")

Strings = list[str] | None
Integers = list[int] | None
Model = Annotated[
    str, typer.Argument(help="Model folder, GGUF file or pulled name; a run for curves.")
]
Source = Annotated[
    str | None, typer.Option(help="The text (an image's path) to read; none: standard input.")
]
Target = Annotated[
    str | None, typer.Option(help="What should come out: a text, a label, labels of words.")
]
Second = Annotated[
    str | None, typer.Option(help="A pair's second text; the question to an answerer.")
]
View = Annotated[
    Strings,
    typer.Option(
        help="flow, steps, attention, lens, drift, attribution (sounder than rollout), rollout, "
        "beam, positions, embeddings, curves or all; repeatable."
    ),
]
Layer = Annotated[Integers, typer.Option(help="Only this layer's attention; repeatable.")]
Head = Annotated[Integers, typer.Option(help="Only this head's attention; repeatable.")]
Attention = Annotated[
    str | None, typer.Option(metavar="encoder|masked|cross", help="Only this attention.")
]
Beams = Annotated[int | None, typer.Option(min=1, help="Beams of the beam view.")]
Top = Annotated[int, typer.Option(min=1, help="Candidates, or neighbours, to show.")]
Word = Annotated[Strings, typer.Option(help="A word to find the neighbours of; repeatable.")]
With = Annotated[
    list[Path] | None, typer.Option("--with", help="Another run, for its curves; repeatable.")
]
Out = Annotated[
    Path | None,
    typer.Option(help="A figure (.png, .svg, .pdf), page (.html), numbers (.json, .npz)."),
]


def inspect(
    model: Model,
    source: Source = None,
    target: Target = None,
    second: Second = None,
    view: View = None,
    layer: Layer = None,
    head: Head = None,
    attention: Attention = None,
    beams: Beams = None,
    top: Top = 5,
    word: Word = None,
    with_: With = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Look inside: attention, probabilities, the flow of shapes, and more.

    \b
    Example: qkv inspect runs/demo --source 我爱你
    Example: qkv inspect runs/demo --source 我爱你 --view attention --attention cross --out map.svg
    Example: qkv inspect runs/demo --source 我爱你 --view all --out inside.html
    Example: qkv inspect smollm2 --source "The capital of France is" --view lens --top 3
    Example: qkv inspect runs/demo --view embeddings --word love --word like
    Example: qkv inspect runs/demo --view curves --with runs/other --out curves.png
    """
    from qkv.inspect.panes import Wish

    if word and not view and source is None:
        view = ["embeddings"]
    if with_ and view and not {"curves", "all"} & {*view}:
        raise UserError("--with lays the curves of another run over these; add --view curves.")
    _check(view, attention, out, as_json)
    wish = Wish(
        tuple(layer or ()), tuple(head or ()), attention or "", beams, top, tuple(word or ())
    )
    text = _read_text(source, view)
    names = _named(view)
    subject = _open(model, names, text, target, second, with_ or [], device)
    if out is not None and out.suffix.lower() == ".npz":
        _save(subject, out)
        return
    names = _chosen(names, subject, wish, out)
    _show(model, names, subject, wish, out, as_json)


def _check(view: Strings, attention: str | None, out: Path | None, as_json: bool) -> None:
    """What can be wrong before anything is loaded."""
    from qkv.inspect.report import VIEWS

    for name in view or ():
        if name not in (*VIEWS, "all"):
            near = get_close_matches(name, [*VIEWS, "all"], n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(VIEWS)}, all."
            raise UserError(f"There is no view {name!r}; {hint}")
    if attention is not None and attention not in KINDS:
        raise UserError(f"Unknown attention {attention!r}; there are {', '.join(KINDS)}.")
    if out is None:
        return
    if as_json:
        raise UserError("--json prints numbers and --out writes a file; give one of the two.")
    if out.suffix.lower() not in ENDINGS:
        raise UserError(
            f"{out} ends in {out.suffix or 'nothing'}, but what is seen is written as "
            f"{', '.join(ENDINGS)}; choose one of these endings."
        )
    check_writable(out)


def _named(view: Strings) -> list[str]:
    """The views by name, once each, in their own order; none where it is left to us."""
    from qkv.inspect.report import VIEWS

    asked = view or ()
    return list(VIEWS) if "all" in asked else [name for name in VIEWS if name in asked]


def _read_text(source: str | None, view: Strings) -> str | None:
    """The text: given, or piped in where a view may need one."""
    from qkv.inspect.report import needs_text

    if source is not None:
        return source
    wanted = any(name == "all" or needs_text(name) for name in view) if view else True
    if not wanted or sys.stdin is None or sys.stdin.isatty():
        return None
    return "\n".join(read_stdin()).strip("\n") or None


def _open(
    name: str,
    views: Sequence[str],
    text: str | None,
    target: str | None,
    second: str | None,
    others: Sequence[Path],
    device: str,
) -> Subject:
    """Load what the views need: logs, a model, one pass of it."""
    from qkv.inspect.panes import Subject
    from qkv.tasks import load

    runs = _runs(name, others, must="curves" in views and len(views) == 1)
    if views == ["curves"] or (not views and text is None and runs):
        if not views:
            _remark(_without_text("so here are the curves of its training"))
        return Subject(runs=runs)
    if text is None and not ({"positions", "embeddings", "curves"} & {*views}):
        raise UserError(_without_text("give one with --source"))
    task = load(name, device)
    trace = None if text is None else _trace(task, text, target, second)
    return Subject(task.model, trace, _vocabularies(task), runs)


def _without_text(so: str) -> str:
    return (
        f"There is no text to read, and only the views positions, embeddings and curves need "
        f"none; {so}."
    )


def _runs(name: str, others: Sequence[Path], must: bool) -> Mapping[str, Sequence[Record]]:
    """The logs of this run and of others; none is fine unless curves are what is asked for."""
    from qkv.inspect.curves import read_logs
    from qkv.shelf import find_model

    folder = Path(name) if Path(name).is_dir() else find_model(name)
    if not (must or others or (folder / "log.jsonl").is_file()):
        return {}
    return read_logs([folder, *others])


def _trace(task: Any, text: str, target: str | None, second: str | None) -> Trace:
    """One pass, with texts where the task wants them."""
    from qkv.tasks import Answerer, Classifier, Tagger

    given: Any = text
    if isinstance(task, Answerer):
        if second is None:
            raise UserError(
                "This model finds answers in a text; give the text as --source and the question "
                "as --second."
            )
        given = (second, text)
    elif second is not None:
        if not isinstance(task, Classifier):
            raise UserError("--second is for models that read two texts; leave it out.")
        given = (text, second)
    wanted = target.split() if isinstance(task, Tagger) and target is not None else target
    try:
        found: Trace = task.trace(given, wanted)
    except UserError as error:  # this command does not cut
        sentence = str(error).replace(", or cut it off with --truncate", "")
        raise UserError(sentence) from error
    return found


def _vocabularies(task: Any) -> list[Vocabulary]:
    """Whose embeddings can be asked for: the source's, and the target's where it has its own."""
    from qkv.inspect.panes import Vocabulary
    from qkv.tasks import ImageClassifier, Translator

    if isinstance(task, ImageClassifier):
        return []
    if isinstance(task, Translator):
        both = task.tokenizers
        source, target = task.model.source_embedding, task.model.target_embedding
        found = [Vocabulary(both.source, source.table.weight)]
        apart = source is not target
        return [*found, *([Vocabulary(both.target, target.table.weight)] if apart else [])]
    return [Vocabulary(task.tokenizer, task.model.embedding.table.weight)]


def _save(subject: Subject, out: Path) -> None:
    if subject.trace is None:
        raise UserError(f"{out} is to hold a pass, which needs a text; give one with --source.")
    arrays = subject.trace.save(out)
    print(arrays)
    print(arrays.with_suffix(".json"))


def _chosen(names: list[str], subject: Subject, wish: Wish, out: Path | None) -> list[str]:
    """The views that are asked for, or else those that suit the model and the form."""
    from qkv.inspect.report import VIEWS, applicable, needs_text

    if len(names) == len(VIEWS):
        return applicable(names, subject, wish)
    if names:
        if subject.trace is None and (lacking := [name for name in names if needs_text(name)]):
            raise UserError(f"The view {lacking[0]} needs a text; give one with --source.")
        return names
    if subject.trace is None:
        return ["curves"]
    page = out is not None and out.suffix.lower() == ".html"
    return applicable(list(VIEWS) if page else USUAL, subject, wish)


def _show(
    model: str, names: list[str], subject: Subject, wish: Wish, out: Path | None, as_json: bool
) -> None:
    from qkv.files import write_json, write_text
    from qkv.inspect.report import build_panes, report_numbers, report_page

    panes = build_panes(names, subject, wish)
    ending = out.suffix.lower() if out else ""
    if as_json:
        print(json.dumps(report_numbers(model, subject, panes), ensure_ascii=False))
    elif out is None:
        _print(panes)
    elif ending in PICTURES:
        _draw(panes, out)
    else:
        if ending == ".html":
            write_text(out, report_page(Path(model).name, subject, panes))
        else:
            write_json(out, report_numbers(model, subject, panes))
        print(out)
    for pane in panes.values():
        for remark in pane.remarks:
            _remark(remark)


def _draw(panes: dict[str, Pane], out: Path) -> None:
    """A picture a view; several have their views in their names."""
    from qkv.inspect.save import save_figure, uses_viewer_fonts

    for name, pane in panes.items():
        path = out if len(panes) == 1 else out.with_name(f"{out.stem}-{name}{out.suffix}")
        figure = pane.draw(uses_viewer_fonts(path))
        save_figure(figure, path)
        print(path)
        note = " ".join(figure.get_supxlabel().split())
        if found := re.search(r"⟨1⟩ = .*viewer's fonts\.", note):
            _remark(f"{path.name}: {_unspelled(found[0])}")


def _unspelled(note: str) -> str:
    """A figure's note with the characters that the figure had no font for; a terminal may."""
    points = re.compile(r"U\+[0-9A-F]+(?: U\+[0-9A-F]+)*")
    return points.sub(
        lambda run: "".join(chr(int(code, 16)) for code in re.findall(r"\+(\w+)", run[0])), note
    )


def _print(panes: dict[str, Pane]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for pane in panes.values():
        parts = list(pane.text(console.width))
        console.print(Text(pane.title, style="bold"))
        console.print(Text(pane.about, style="dim"), end="\n\n")
        for part in parts:
            console.print(part, markup=False)
        console.print()


def _remark(remark: str) -> None:
    typer.echo(f"· {remark}", err=True)
