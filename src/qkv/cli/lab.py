"""`qkv lab`: a claim about the Transformer in, an experiment and its verdict out."""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from qkv.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

    from qkv_labs import Lab, Report, Settings
    from qkv_labs.gallery import Language

COLOURS = {"holds": "green", "refuted": "red", "undecided": "yellow"}


def complete_lab(incomplete: str) -> list[str]:
    """List the labs whose names begin so, for the shell."""
    from qkv_labs.catalogue import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def lab(
    name: Annotated[
        str | None,
        typer.Argument(help="Name or number of a lab.", autocompletion=complete_lab),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the labs.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Run all, and make a gallery.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Longer: more steps, seeds, sizes.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of figures and numbers.")] = Path("runs/labs"),
    language: Annotated[str, typer.Option(metavar="en|zh", help="Language of the texts.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Test a claim about the Transformer by an experiment.

    \b
    Example: qkv lab --list
    Example: qkv lab scale
    Example: qkv lab score-functions --full --seed 1
    Example: qkv lab --all --out runs/labs
    """
    from qkv_labs import Settings, all_labs, find

    if language not in ("en", "zh"):
        raise UserError(f"Unknown language {language!r}; the labs speak en and zh.")
    if name and (all_ or list_):
        raise UserError(f"Both {name} and all labs are asked for; leave one of them out.")
    if all_ and list_:
        raise UserError("--list shows the labs and --all runs them; give one of the two.")
    spoken = cast("Language", language)
    if not (name or all_):
        _list(all_labs(), spoken, as_json)
        return
    labs = [find(name)] if name else all_labs()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; name a folder for figures and numbers.")
    out.mkdir(parents=True, exist_ok=True)  # before the work, so that it is not done in vain
    if name:
        _run_one(labs[0], Settings(full, seed), out, spoken, as_json)
    else:
        _run_all(labs, Settings(full, seed), out, spoken, as_json)


def _list(labs: Sequence[Lab[Any]], language: Language, as_json: bool) -> None:
    from qkv_labs.gallery import say
    from qkv_labs.texts import COMMON

    if as_json:
        for lab in labs:
            texts = {name: dataclasses.asdict(getattr(lab, name)) for name in ("title", "claim")}
            _print_json({"number": lab.number, "name": lab.name, **texts, "needs": lab.needs})
        return
    rows = [(str(lab.number), lab.name, say(lab.title, language)) for lab in labs]
    _print_table(("", "lab", "title"), rows, language)
    print(say(COMMON("usage"), language))


def _run_one(
    lab: Lab[Any], settings: Settings, out: Path, language: Language, as_json: bool
) -> None:
    from qkv_labs.gallery import say
    from qkv_labs.texts import COMMON

    with _bar(1) as bar:
        report, (*written, numbers) = _run(lab, settings, out, bar)
    if as_json:
        _print_json(report.to_dict())
        return
    figures = [path for path in written if (".zh." in path.name) == (language == "zh")]
    conditions = {"seconds": report.seconds, "machine": report.machine, "seed": report.seed}
    _print_report(report, language)
    for line in (
        COMMON("figure", path=", ".join(map(str, figures))),
        COMMON("numbers", path=numbers),
        COMMON("run", **conditions),
    ):
        print(say(line, language))


def _run_all(
    labs: Sequence[Lab[Any]], settings: Settings, out: Path, language: Language, as_json: bool
) -> None:
    """Run one after the other; a lab that fails, or lacks its model, does not stop the rest."""
    from qkv_labs.gallery import marks, say, write_gallery
    from qkv_labs.runner import can_run

    reports: list[Report] = []
    failed: list[str] = []
    with _bar(len(labs)) as bar:
        for lab in labs:
            if not can_run(lab):
                _note(bar, f"{lab.name} is skipped; fetch its model with `qkv pull {lab.needs}`")
            elif report := _try(lab, settings, out, bar):
                reports.append(report)
                _note(bar, f"{lab.name}: {marks(report.verdict)} ({report.seconds:.0f} s)")
            else:
                failed.append(lab.name)
            bar.advance(bar.task_ids[0])
    pages = write_gallery(out) if reports else ()
    if as_json:
        for report in reports:
            _print_json(report.to_dict())
    else:
        rows = []
        for report in reports:
            lab, verdict = report.lab, marks(report.verdict)
            title, seconds = say(lab.title, language), f"{report.seconds:.0f} s"
            rows.append((str(lab.number), lab.name, title, verdict, seconds))
        _print_table(("", "lab", "title", "verdict", "time"), rows, language)
        print(f"{len(reports)} of {len(labs)} labs ran.")
        if pages:
            print(f"Gallery: {', '.join(map(str, pages))}")
    if failed:
        typer.echo(f"qkv: {len(failed)} failed: {', '.join(failed)}.", err=True)
        raise typer.Exit(1)


def _run(
    lab: Lab[Any], settings: Settings, out: Path, bar: Progress
) -> tuple[Report, tuple[Path, ...]]:
    """Run a lab and write its results, with the current step beside the bar, or printed."""
    from qkv_labs import run_lab, write

    alone = bar.tasks[0].total == 1  # of several, the results alone are noted

    def tell(step: str) -> None:
        bar.update(bar.task_ids[0], description=f"{lab.name}: {step}")
        if alone and not bar.console.is_terminal:
            _note(bar, step)

    tell("starting")
    report = run_lab(lab, dataclasses.replace(settings, tell=tell))
    return report, write(report, out)


def _try(lab: Lab[Any], settings: Settings, out: Path, bar: Progress) -> Report | None:
    """Run a lab and write its results, or show why that went wrong."""
    try:
        return _run(lab, settings, out, bar)[0]
    except UserError as error:
        _note(bar, f"{lab.name} failed: {error}")
    except Exception:  # the labs after this one shall run
        _note(bar, f"{lab.name} failed:\n{traceback.format_exc()}")
    return None


def _bar(total: int) -> Progress:
    """Return a progress bar on the error stream; disabled where that is no terminal."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    columns = (progress.BarColumn(), progress.MofNCompleteColumn()) if total > 1 else ()
    bar = progress.Progress(
        *columns,
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    bar.add_task("", total=total)
    return bar


def _note(bar: Progress, text: str) -> None:
    bar.console.print(f"· {text}", highlight=False, markup=False, soft_wrap=True)


def _print_report(report: Report, language: Language) -> None:
    """Print claim, experiment, tables, and each sub-claim in the colour of its outcome."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from qkv_labs.gallery import CLAIM, EXPERIMENT, describe, say, verdict_line

    lab, console = report.lab, Console(highlight=False)
    console.print(Text(f"{lab.number}. {say(lab.title, language)}", style="bold"), end="\n\n")
    for heading, words in ((CLAIM, lab.claim), (EXPERIMENT, lab.experiment)):
        console.print(Text(say(heading, language), style="bold"))
        console.print(Text(say(words, language)), end="\n\n")
    for table in report.tables:
        console.print(Text(say(table.title, language), style="bold"))
        _print_table(table.head, table.rows, language, lab.name)
    console.print(Text(verdict_line(report.verdict, language), style="bold"))
    for sub_claim in report.verdict.sub_claims:
        claim, figures, work = describe(sub_claim, language, lab.name)
        console.print(Text(claim, style=COLOURS[sub_claim.outcome]))
        for line, style in ((figures, ""), (work, "dim")):
            if line:
                console.print(Padding(Text(line, style=style), (0, 0, 0, 2)))
    console.print()


def _print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], language: Language, lab: str = ""
) -> None:
    from qkv_labs.gallery import say_cells
    from qkv_labs.printed import table_lines

    cells = [say_cells(row, language, lab) for row in rows]
    for line in table_lines(say_cells(head, language, lab, heading=True), cells):
        print(line)


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, ensure_ascii=False))
