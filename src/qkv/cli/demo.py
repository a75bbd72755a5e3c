"""`qkv demo`: the whole journey on this machine, in about two minutes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import options
from qkv.cli.train import program, python, resumable, resuming

if TYPE_CHECKING:
    from qkv.config import Recipe
    from qkv.run.train import Run

NAMED = ("我爱你", "我爱学习", "我吃了一个苹果")
SAMPLES = 10
WORKERS = 2  # processes: in so small a model a second thread finds little to do


def demo(
    out: Annotated[
        Path, typer.Option(metavar="<path>", parser=options.named_folder, help="Run folder.")
    ] = Path("runs/demo"),
    set_: options.Changes = None,
) -> None:
    """Train a Chinese-to-English translator here and try it.

    The corpus comes with the package, a CPU is enough, and held-out sentences score it.

    Example: qkv demo
    """
    import qkv
    from qkv.config import load_recipe
    from qkv.device import pick_device

    recipe = load_recipe(Path(qkv.__file__).parent / "recipes" / "demo.toml", set_ or ())
    n_workers = min(WORKERS, os.cpu_count() or 1)
    alone = "RANK" in os.environ or os.environ.get("OMP_NUM_THREADS") == "1"
    alone = alone or pick_device(recipe.train.device).type != "cpu"
    if n_workers > 1 and not alone and sys.platform == "linux":
        from qkv.run.launch import launch

        changes = [part for change in set_ or () for part in ("--set", change)]
        command = [sys.executable, "-m", "qkv", "demo", "--out", str(out), *changes]
        if code := launch(n_workers, command, f"{resuming(out)} --workers {n_workers}"):
            raise typer.Exit(code)
    else:
        _train(recipe, out)
    if "RANK" not in os.environ:
        _show_next_steps(out)


def _train(recipe: Recipe, folder: Path) -> None:
    """Train here, alone or as one of several workers, and let the main one show what came of it."""
    from rich.console import Console

    from qkv.run.train import train

    with resumable(folder):
        run = train(recipe, folder, replace=True, console=Console(stderr=True))
    if os.environ.get("RANK", "0") == "0":
        _show(run)


def _show(run: Run) -> None:
    exact = next(score for score in run.scores["test"] if score.name == "exact match")
    print(f"\nHeld-out combinations, never seen in training: {exact.value:.1f} % exact match")
    for score in run.scores["test"][:2]:
        print(f"  {score}")
    print("\nSamples of them:")
    for source in _samples(run):
        print(f"  {source} → {run.result.translate(source)}")


def _show_next_steps(folder: Path) -> None:
    ask = f"import qkv; print(qkv.load({str(folder)!r}).translate('我爱你'))"
    print(f"\nThe model is in {folder}. Try it:")
    print(f'  {program()} translate --model {folder} "我爱你"')
    print(f"  {program()} inspect {folder} --source 我爱你")
    print(f'  {python()} -c "{ask}"')
    print(f"Try it in the browser: {program()} serve {folder}")


def _samples(run: Run) -> list[str]:
    """The sentences that everybody tries, and others from the held-out split."""
    sources = [source for source, _ in run.splits.test if source not in NAMED]
    spread = max(1, len(sources) // (SAMPLES - len(NAMED)))
    return [*NAMED, *sources[::spread]][:SAMPLES]
