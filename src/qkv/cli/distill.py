"""`qkv distill`: a translator taught by the translations of a larger one."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.train import train_on_more


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
    from qkv.run.synthesize import distill as run_distillation

    run = partial(run_distillation, teacher, text=text or (), resume=resume)
    train_on_more(recipe, out, set_, run)
