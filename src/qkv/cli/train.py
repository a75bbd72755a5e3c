"""`qkv train`: a recipe in, a model folder out."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options

if TYPE_CHECKING:
    from qkv.config import Recipe
    from qkv.run.train import Run


def train(
    recipe: options.RecipeFile,
    out: options.Out = None,
    set_: options.Changes = None,
    resume: options.Resume = False,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Train on this many GPUs of this machine.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Train in this many processes on this CPU.")
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(min=0, help="With these: go on by itself when a worker dies, so many times."),
    ] = 0,
) -> None:
    """Train a model from a recipe.

    Ctrl-C finishes the step, writes a checkpoint and stops; a second one stops at once. Several
    machines: torchrun … -m qkv train RECIPE, see docs/scaling.md.

    \b
    Example: qkv train recipes/multi30k.toml --set data.source=train.en --set data.target=train.de
    """
    from rich.console import Console

    from qkv.config import load_recipe
    from qkv.errors import UserError
    from qkv.run.train import train as run_recipe

    folder = out or Path("runs") / recipe.stem
    loaded = load_recipe(recipe, set_ or ())
    if gpus or workers:
        check_workers(gpus, workers, loaded.train.device)
        from qkv.run.launch import launch

        again = ["--resume"] if resume else []
        changes = [part for change in set_ or () for part in ("--set", change)]
        worker = [sys.executable, "-m", "qkv", "train", str(recipe), "--out", str(folder)]
        command, n_workers = [*worker, *changes, *again], gpus or workers or 1
        resume_with = f"{resuming(folder)} {'--gpus' if gpus else '--workers'} {n_workers}"
        raise typer.Exit(launch(n_workers, command, resume_with, restarts))
    if restarts:
        raise UserError("--restarts is about workers; give --gpus or --workers, or leave it out.")
    with resumable(folder):
        run = run_recipe(loaded, folder, resume=resume, console=Console(stderr=True))
    finish(run, loaded)


def train_on_more(
    recipe: Path, out: Path | None, set_: Sequence[str] | None, run: Callable[..., Run]
) -> None:
    """Train from a recipe with a function that also makes up examples, resumable as a whole."""
    from rich.console import Console

    from qkv.config import load_recipe

    folder, loaded = out or Path("runs") / recipe.stem, load_recipe(recipe, set_ or ())
    with resumable(folder, again=True):
        done = run(recipe=loaded, out=folder, console=Console(stderr=True))
    finish(done, loaded)


def finish(run: Run, recipe: Recipe) -> None:
    """Print the scores of a finished run, and the command that uses its model."""
    from qkv.run.card import usage

    if os.environ.get("RANK", "0") != "0":
        return  # the main worker tells
    for split, scores in run.scores.items():
        for score in scores:
            print(f"{split}: {score}")
    command = usage(recipe, run.result.model.config, run.folder).removeprefix("qkv")
    print(f"{run.folder} is ready: {program()}{command}")


def check_workers(gpus: int | None, workers: int | None, device: str) -> None:
    """Refuse workers that this machine or the recipe has no device for."""
    import torch

    from qkv.device import pick_device
    from qkv.errors import UserError

    if gpus and workers:
        raise UserError("--gpus and --workers are both given; give one of them.")
    if gpus and gpus > torch.cuda.device_count():
        raise UserError(
            f"--gpus {gpus}: this machine has {torch.cuda.device_count()}; ask for fewer, or for "
            f"processes on the CPU with --workers."
        )
    kind = pick_device(device).type
    if gpus and kind != "cuda":
        raise UserError(f"--gpus: train.device is {device!r}; leave one of the two out.")
    if workers and kind != "cpu":
        raise UserError(
            "--workers starts processes on the CPU, but the run would use a GPU; use --gpus, or "
            "--set train.device=cpu."
        )


@contextmanager
def resumable(folder: Path, again: bool = False) -> Iterator[None]:
    """Where a signal stops training, print the command that resumes it; exit with 128 + signal.

    That is `qkv train`, or the command that was given (`again`), where it does more than train.
    """
    from qkv.training import TrainingInterrupt

    try:
        yield
    except TrainingInterrupt as stop:
        print(f"· stopped after step {stop.step}; resume with:", file=sys.stderr)
        given = shlex.join(part for part in sys.argv[1:] if part != "--resume")
        command = f"{program()} {given} --resume" if again else resuming(folder)
        print(f"  {command}", file=sys.stderr)
        raise typer.Exit(128 + stop.signal_number) from None


def resuming(folder: Path) -> str:
    """Return the command that resumes the run of a folder, with as many workers if this is one."""
    from qkv.run.launch import RESUME

    if RESUME in os.environ:
        return os.environ[RESUME]
    recipe, out = (shlex.quote(str(path)) for path in (folder / "recipe.toml", folder))
    return f"{program()} train {recipe} --out {out} --resume"


def program() -> str:
    """Return how a new shell starts this program: `qkv` where that is on PATH, or as it was now."""
    started, on_path = sys.argv[0], shutil.which("qkv")
    if Path(started).stem != "qkv":
        return f"{python()} -m qkv"
    if on_path and Path(started).exists() and Path(started).samefile(on_path):
        return "qkv"
    return started


def python() -> str:
    """Return how a new shell starts this Python: by name where that is on PATH, or by its path."""
    on_path = shutil.which("python")
    same = on_path is not None and Path(on_path).absolute() == Path(sys.executable).absolute()
    return "python" if same else sys.executable
