"""`qkv train`: a recipe in, a model folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe in TOML; see recipes/ and docs/train.md.")],
    out: Annotated[
        Path | None, typer.Option(help="Run folder [default: runs/ and the recipe's name].")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; repeatable."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run folder's last checkpoint.")
    ] = False,
) -> None:
    """Train a model from a recipe.

    \b
    Example: qkv train recipes/multi30k.toml --set data.source=train.en --set data.target=train.de
    """
    from rich.console import Console

    from qkv.config import load_recipe
    from qkv.run import train as run_recipe
    from qkv.run.card import usage

    folder = out or Path("runs") / recipe.stem
    loaded = load_recipe(recipe, set_ or ())
    run = run_recipe(loaded, folder, resume=resume, console=Console(stderr=True))
    for split, scores in run.scores.items():
        for score in scores:
            print(f"{split}: {score}")
    print(f"{run.folder} is ready: {usage(loaded, run.result.model.config, run.folder)}")
