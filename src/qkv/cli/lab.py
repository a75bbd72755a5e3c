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
from qkv_labs.lab import Words

if TYPE_CHECKING:
    from rich.progress import Progress

    from qkv_labs import Lab, Report, Settings
    from qkv_labs.gallery import Language

HOW = Words(
    "Run one with `qkv lab NAME`, all with `qkv lab --all`; each states its claim first.",
    "用 `qkv lab 名称` 运行一个实验，用 `qkv lab --all` 运行全部；每个实验先写明要检验的论断。",
)
FIGURE, NUMBERS = Words("Figure: {}", "图：{}"), Words("Numbers: {}", "数据：{}")
TAKEN = Words("{} seconds; {}; seed {}", "用时 {} 秒；{}；随机种子 {}")
COLOURS = {"holds": "green", "holds when": "yellow", "does not hold": "red"}


def lab(
    name: Annotated[str | None, typer.Argument(help="A lab's name or number.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show which labs there are.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Run all, and make a gallery.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Longer: more steps, seeds, sizes.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Where random numbers start.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of figures and numbers.")] = Path("runs/labs"),
    language: Annotated[str, typer.Option(metavar="en|zh", help="Language of the words.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Put a claim about the Transformer to the test, and say whether it holds.

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
    from qkv_labs.gallery import say, say_cells

    if as_json:
        for one in labs:
            _print_json(
                {
                    "number": one.number,
                    "name": one.name,
                    "title": dataclasses.asdict(one.title),
                    "claim": dataclasses.asdict(one.claim),
                    "needs": one.needs,
                }
            )
        return
    rows = [(str(one.number), one.name, say(one.title, language)) for one in labs]
    _print_table(say_cells(("", "lab", "title"), language, heading=True), rows)
    print(say(HOW, language))


def _run_one(
    one: Lab[Any], settings: Settings, out: Path, language: Language, as_json: bool
) -> None:
    from qkv_labs import write
    from qkv_labs.gallery import say

    with _bar(1) as bar:
        report = _run(one, settings, bar, say_steps=not bar.console.is_terminal)
        *figures, numbers = write(report, out)
    if as_json:
        _print_json(report.to_dict())
        return
    _print_report(report, language)
    files = ", ".join(map(str, figures)), str(numbers)
    for words, given in zip((FIGURE, NUMBERS), files, strict=True):
        print(say(words, language).format(given))
    how = (f"{report.seconds:.1f}", report.machine, report.seed)
    print(say(TAKEN, language).format(*how))


def _run_all(
    labs: Sequence[Lab[Any]], settings: Settings, out: Path, language: Language, as_json: bool
) -> None:
    """Run one after the other; what fails, or lacks its model, does not hold up the others."""
    from qkv_labs.gallery import write_gallery
    from qkv_labs.runner import can_run

    reports: list[Report] = []
    failed: list[str] = []
    with _bar(len(labs)) as bar:
        for one in labs:
            if not can_run(one):
                _remark(bar, f"{one.name} is skipped; fetch its model with `qkv pull {one.needs}`")
            elif report := _try(one, settings, out, bar):
                reports.append(report)
                _remark(bar, f"{one.name}: {report.verdict.outcome} ({report.seconds:.0f} s)")
            else:
                failed.append(one.name)
            bar.advance(bar.task_ids[0])
    pages = write_gallery(out) if reports else ()
    if as_json:
        for report in reports:
            _print_json(report.to_dict())
    else:
        _print_summary(reports, language)
        print(f"{len(reports)} of {len(labs)} labs ran.")
        if pages:
            print(f"Gallery: {', '.join(map(str, pages))}")
    if failed:
        typer.echo(f"qkv: {len(failed)} failed: {', '.join(failed)}.", err=True)
        raise typer.Exit(1)


def _run(one: Lab[Any], settings: Settings, bar: Progress, say_steps: bool) -> Report:
    """Run a lab, with the step that it is at beside the bar, or as a remark."""
    from qkv_labs import run_lab

    def tell(step: str) -> None:
        bar.update(bar.task_ids[0], description=f"{one.name}: {step}")
        if say_steps:
            _remark(bar, step)

    tell("starting")
    return run_lab(one, dataclasses.replace(settings, tell=tell))


def _try(one: Lab[Any], settings: Settings, out: Path, bar: Progress) -> Report | None:
    """Run a lab and write what it found, or show why that went wrong."""
    from qkv_labs import write

    try:
        report = _run(one, settings, bar, say_steps=False)
        write(report, out)
    except UserError as error:
        _remark(bar, f"{one.name} failed: {error}")
    except Exception:  # whatever it is, the labs after this one shall run
        _remark(bar, f"{one.name} failed:\n{traceback.format_exc()}")
    else:
        return report
    return None


def _bar(total: int) -> Progress:
    """A bar with the lab that is at work on the error stream; none where that is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn()) if total > 1 else ()
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    bar.add_task("", total=total)
    return bar


def _remark(bar: Progress, text: str) -> None:
    bar.console.print(f"· {text}", highlight=False, markup=False, soft_wrap=True)


def _print_report(report: Report, language: Language) -> None:
    """Claim, experiment, tables, and the verdict in the colour of its outcome."""
    from rich.console import Console
    from rich.text import Text

    from qkv_labs.gallery import CLAIM, EXPERIMENT, say, say_cells, verdict_line

    one, console = report.lab, Console(highlight=False)
    console.print(Text(f"{one.number}. {say(one.title, language)}", style="bold"), end="\n\n")
    for heading, words in ((CLAIM, one.claim), (EXPERIMENT, one.experiment)):
        console.print(Text(say(heading, language), style="bold"))
        console.print(Text(say(words, language)), end="\n\n")
    for table in report.tables:
        console.print(Text(say(table.title, language), style="bold"))
        head = say_cells(table.head, language, heading=True)
        _print_table(head, [say_cells(row, language) for row in table.rows])
    verdict = verdict_line(report.verdict.outcome, language)
    console.print(Text(verdict, style=f"bold {COLOURS[report.verdict.outcome]}"))
    console.print(Text(say(report.verdict.because, language)), end="\n\n")


def _print_summary(reports: Sequence[Report], language: Language) -> None:
    from qkv_labs.gallery import OUTCOMES, say, say_cells

    rows = [
        (
            str(report.lab.number),
            report.lab.name,
            say(report.lab.title, language),
            say(OUTCOMES[report.verdict.outcome], language),
            f"{report.seconds:.0f} s",
        )
        for report in reports
    ]
    head = ("", "lab", "title", "verdict", "time")
    _print_table(say_cells(head, language, heading=True), rows)


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in head:
        table.add_column(heading, overflow="fold")  # nothing is cut off
    for row in rows:
        table.add_row(*map(Text, row))  # brackets in a cell are no markup
    Console().print(table)


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, ensure_ascii=False))
