"""`qkv backtranslate`: a translator that learns from target text without sources, too."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from qkv.cli import options
from qkv.cli.train import train_on_more


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
    from qkv.run.synthesize import backtranslate as run_backtranslation

    run = partial(run_backtranslation, text=text, model=model, sample=sample, resume=resume)
    train_on_more(recipe, out, set_, run)
