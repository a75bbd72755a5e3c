"""`qkv bulk`: files of millions of lines in, a file of output for each part of them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli import options
from qkv.cli.common import counting_bar, named_by_options

VERBS = ("translate", "generate", "fill", "embed", "classify", "tag")
"""Commands that answer each line by itself: `answering` in the module of this name says how."""
HELP = """Run a command on files of any size, with many workers.

The work is cut into parts and can be resumed; Ray runs the workers.

Each part of the input gets a file in OUTDIR; they are written once, in the input's order. The same
command again goes on where it was stopped.

\b
Example: qkv bulk translate lines.zh out --model runs/demo --workers 8
"""

Input = Annotated[
    str, typer.Argument(metavar="INPUT", help="File, folder or 'pattern': a line a text.")
]
Folder = Annotated[Path, typer.Argument(metavar="OUTDIR", help="Folder of the output files.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Ray workers, each with the model [default: this process alone]."),
]
PartLines = Annotated[int, typer.Option(min=1, help="Lines of a part.")]
Address = Annotated[
    str | None,
    typer.Option(help="Ray cluster to use, like auto [default: one of this machine, for now]."),
]


def bulk(arguments: Sequence[str] = ()) -> typer.Typer:
    """Build the table of bulk commands: the one that the arguments begin with, or all."""
    app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    for verb in [verb for verb in VERBS if verb in arguments[:1]] or VERBS:
        app.command(verb)(options.with_adapter(_command(verb)))
    return app


def _command(verb: str) -> Callable[..., None]:
    """Build the bulk form of a command, with the same options."""
    answering = import_module(f"qkv.cli.{verb}").answering

    @options.with_options_of(answering)
    def command(
        input_: Input,
        outdir: Folder,
        workers: Workers = None,
        part_lines: PartLines = 10_000,
        address: Address = None,
        **settings: Any,
    ) -> None:
        from qkv.bulk import run_bulk
        from qkv.bulk.on_ray import on_ray

        n_workers = workers or (1 if address else 0)
        work = on_ray(n_workers, address, settings["device"]) if n_workers else None
        suffix = ".jsonl" if settings["as_json"] else ".npy" if verb == "embed" else ".txt"
        settings, weights = _located(settings)
        given = {name: value for name, value in settings.items() if name != "device"}
        with counting_bar() as progress:
            job = run_bulk(
                partial(open_answer, verb, suffix, settings),
                [input_],
                outdir.absolute(),
                suffix,
                {"command": verb, "settings": given, "weights": weights},
                part_lines,
                work,
                progress,
            )
        n_lines = sum(part.n_lines for part in job.parts)
        n_parts = f"{len(job.parts):,} part{'s' * (len(job.parts) != 1)}"
        print(f"{n_lines:,} lines in {n_parts}: {outdir}/part-*{suffix}")

    command.__doc__ = f"{answering.__doc__}\n\nExample: qkv bulk {verb} lines.txt out --workers 8"
    return command


def open_answer(
    verb: str, suffix: str, settings: dict[str, Any]
) -> Callable[[list[str], int], Any]:
    """Load a command's model; return what makes the command's output of lines."""
    _, ask, show, _ = import_module(f"qkv.cli.{verb}").answering(**settings)

    def answer(lines: list[str], first: int) -> Any:
        with named_by_options(first):
            outputs = ask(lines, first, None)
        if suffix == ".npy":
            return outputs
        return [show(line, output) for line, output in zip(lines, outputs, strict=True)]

    return answer


def _located(settings: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Name the model by its path, which holds for all workers; list its files of weights."""
    from qkv.shelf import TRANSLATOR, find_model, split_adapter

    base, adapter = split_adapter(settings["model"] or TRANSLATOR)
    folders = [path.resolve() for path in (find_model(base), adapter) if path]
    files = [file for path in folders for file in ([path] if path.is_file() else path.iterdir())]
    versions = [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns]
        for file in files
        if file.suffix in (".safetensors", ".gguf")
    ]
    return {**settings, "model": "+".join(map(str, folders))}, sorted(versions)
