"""`qkv translate`: lines in, lines out, order kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import UserError

FOR_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qkv.tasks import Translation, Translator


def translate(
    text: Annotated[
        list[str] | None, typer.Argument(help="Sentences; none: lines of standard input.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder.")] = ...,  # type: ignore[assignment]
    beams: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 1 favours length.")] = None,
    n_best: Annotated[int | None, typer.Option(help="Translations for each line.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest output in tokens.")] = None,
    prefix: Annotated[str, typer.Option(help="How each translation must begin.")] = "",
    sample: Annotated[bool, typer.Option("--sample", help="Draw at random.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample among those that sum to p.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Sample among those near the top.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut over-long lines.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Translate sentences or lines; blank lines stay blank, in their place.

    \b
    Example: qkv translate --model runs/demo 我爱你
    Example: qkv translate --model runs/demo < lines.zh > lines.en
    """
    settings = {
        "beams": beams, "length_penalty": length_penalty, "n_best": n_best, "seed": seed,
        "max_length": max_length, "sample": sample or None, "temperature": temperature,
        "top_k": top_k, "top_p": top_p, "min_p": min_p,
    }  # fmt: skip
    settings = {name: value for name, value in settings.items() if value is not None}
    idle = [name for name in FOR_SAMPLING if name in settings and not sample]
    if idle:
        raise UserError(f"--{idle[0].replace('_', '-')} is about random draws; add --sample.")
    lines = text if text else read_stdin()
    translator = load_translator(model, device)
    with progress_bar(len(lines)) as advance:
        found = translator.n_best(
            lines, prefix=prefix, truncate=truncate, progress=advance, **settings
        )
    for line, translations in zip(lines, found, strict=True):
        print(_as_json(line, translations) if as_json else _as_text(translations))


def load_translator(folder: str, device: str) -> Translator:
    """Load a model folder that must hold a translator."""
    from qkv.tasks import Translator, load

    found = load(folder, device)
    if not isinstance(found, Translator):
        raise UserError(f"{folder} is no translator; use it with `qkv generate` or `qkv chat`.")
    return found


def _as_text(translations: Sequence[Translation]) -> str:
    """The translation alone; several as lines of score and text; none as a blank line."""
    if len(translations) > 1:
        return "\n".join(f"{found.score:.4f}\t{one_line(found.text)}" for found in translations)
    return one_line(translations[0].text) if translations else ""


def one_line(text: str) -> str:
    """A text that keeps to its line, so that those after it keep their places."""
    return text.replace("\r", " ").replace("\n", " ")


def _as_json(line: str, translations: Sequence[Translation]) -> str:
    best: dict[str, Any] = {"source": line, "translation": ""}
    if translations:
        best |= {"translation": translations[0].text, "score": translations[0].score}
    if len(translations) > 1:
        best["n_best"] = [{"translation": t.text, "score": t.score} for t in translations]
    return json.dumps(best, ensure_ascii=False)


def read_stdin() -> list[str]:
    """The lines of standard input; bytes that are not UTF-8 are a mistake that is named."""
    from qkv.data import lines_of

    return lines_of(sys.stdin.buffer.read(), "standard input")


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar with the count and time left on the error stream, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if total < 20 or not console.is_terminal:
        yield None
        return
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)
