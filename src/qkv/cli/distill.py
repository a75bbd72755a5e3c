"""`qkv distill`: a translator taught by the translations of a larger one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options


def distill(
    teacher: Annotated[str, typer.Argument(help="Translator to learn from (folder or name).")],
    recipe: options.RecipeFile,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Further source text for the teacher, one sentence a line; repeatable."),
    ] = None,
    out: options.Out = None,
    set_: options.Changes = None,
    resume: options.Resume = False,
) -> None:
    """Train a translator on what a teacher translates.

    It learns from its pairs and from the teacher's translations of their sources.

    The translations are kept in the run folder's synthetic.jsonl.

    \b
    Example: qkv distill runs/large recipes/multi30k.toml --set model.n_decoder_layers=2 --out small
    """
    from rich.console import Console

    from qkv.cli.train import finish, resumable
    from qkv.config import load_recipe
    from qkv.run.synthesize import distill as run_distillation

    folder, loaded = out or Path("runs") / recipe.stem, load_recipe(recipe, set_ or ())
    with resumable(folder, again=True):
        run = run_distillation(
            teacher,
            loaded,
            folder,
            text=text or (),
            resume=resume,
            console=Console(stderr=True),
        )
    finish(run, loaded)
