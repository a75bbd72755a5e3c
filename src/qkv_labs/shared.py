"""The packaged translator, trained once and used by every lab that needs a trained model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from qkv.config import Recipe, load_recipe, recipe_to_dict
from qkv.run.train import train
from qkv.shelf import home
from qkv.tasks import Translator


def demo_recipe(*changes: str) -> Recipe:
    """The packaged recipe, with changes as `--set` takes them."""
    import qkv

    return load_recipe(Path(qkv.__file__).parent / "recipes" / "demo.toml", list(changes))


def translator(tell: Callable[[str], None], *changes: str) -> Translator:
    """The packaged translator, trained on this CPU at its first use and kept beside pulled models.

    `changes` give another one, which is kept too.
    """
    recipe = demo_recipe(*changes)
    told = repr(sorted(recipe_to_dict(recipe).items()))
    folder = home() / "labs" / hashlib.sha256(told.encode()).hexdigest()[:16]
    if not (folder / "model.safetensors").exists() or not (folder / "README.md").exists():
        tell("training the packaged translator (once)")
        train(recipe, folder, replace=True, console=Console(quiet=True))
    return Translator.load(folder)
