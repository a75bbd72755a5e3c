"""`qkv backtranslate`: a translator that learns from target text without sources, too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import options


def backtranslate(
    recipe: options.RecipeFile,
    text: Annotated[list[str], typer.Option(help="Target text, one sentence a line; repeatable.")],
    model: Annotated[
        str,
        typer.Option(help="Translator from target to source [default: train one on the pairs]."),
    ] = "",
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw sources at random instead of the best ones.")
    ] = False,
    out: options.Out = None,
    set_: options.Changes = None,
    resume: options.Resume = False,
) -> None:
    """Train a translator on text of its target language too.

    A translator of the opposite direction makes the sources of that text.

    The pairs made are kept in the run folder's synthetic.jsonl. A setting data.repeat=2 reads the
    recipe's own pairs twice in each epoch beside them.

    \b
    Example: qkv backtranslate recipes/tatoeba_zh_en.toml --text more.en --out runs/better
    """
    from rich.console import Console

    from qkv.cli.train import finish, resumable
    from qkv.config import load_recipe
    from qkv.run.synthesize import backtranslate as run_backtranslation

    folder, loaded = out or Path("runs") / recipe.stem, load_recipe(recipe, set_ or ())
    with resumable(folder, again=True):
        run = run_backtranslation(
            loaded,
            text,
            model,
            folder,
            sample=sample,
            resume=resume,
            console=Console(stderr=True),
        )
    finish(run, loaded)
