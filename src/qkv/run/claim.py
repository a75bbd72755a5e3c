"""Whose folder it is: a run never writes over somebody else's files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from qkv.config import Recipe, load_recipe, recipe_to_dict
from qkv.convert.model_folder import CARD, CONFIG, TOKENIZER, WEIGHTS
from qkv.errors import UserError
from qkv.files import write_json

RECIPE, LOG, CHECKPOINTS, CURVES = "recipe.toml", "log.jsonl", "checkpoints", "curves"
TEXT = "text.json"  # a fingerprint of what the run is trained on and validated with
MAY_CHANGE = {"steps", "seconds", "patience", "checkpoint_every", "tensorboard"}  # on resume


def check_claim(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Refuse to write over something else, or to go on with a recipe that would break exactness."""
    path = folder / RECIPE
    if not path.exists():
        _check_free(folder)
    elif resume:
        _check_same(path, recipe)
    elif has_begun(folder):
        raise UserError(
            f"{folder} holds a run already; go on with --resume, or choose another --out."
        )


def _check_free(folder: Path) -> None:
    for name in (CARD, CONFIG, TOKENIZER, WEIGHTS):
        if (folder / name).exists():
            raise UserError(
                f"{folder / name} belongs to something else and would be replaced; "
                f"choose another --out."
            )


def has_begun(folder: Path) -> bool:
    """Whether there is anything to lose: a checkpoint or a model."""
    return (folder / WEIGHTS).exists() or any((folder / CHECKPOINTS).glob("*.safetensors"))


def _check_same(path: Path, recipe: Recipe) -> None:
    if not has_begun(path.parent):
        return
    before, now = recipe_to_dict(load_recipe(path)), recipe_to_dict(recipe)
    for section in now:
        for key in _differing(before[section], now[section]):
            if section != "train" or key not in MAY_CHANGE:
                raise UserError(
                    f"{section}{'.' + key if key else ''} differs from the run in {path.parent}; "
                    f"resume with `qkv train {path} --out {path.parent} --resume`, or start anew "
                    f"with another --out."
                )


def check_text(folder: Path, text: str, resume: bool) -> None:
    """Refuse to go on with other text than the run began with; note what it begins with."""
    path = folder / CHECKPOINTS / TEXT
    if resume and path.exists() and json.loads(path.read_text(encoding="utf-8")) != text:
        raise UserError(
            f"The text has changed since the run in {folder} began, so that it cannot go on as it "
            f"would have; put the text back, or start anew with another --out."
        )
    write_json(path, text)


def _differing(before: object, now: object) -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted(before.keys() | now.keys())
        return [k for k in keys if _plain(before.get(k)) != _plain(now.get(k))]
    return [] if before == now else [""]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def is_run_on(folder: Path, corpus: str) -> bool:
    """Whether the folder holds an earlier run on this packaged corpus, or on none like this one."""
    path = folder / RECIPE
    return path.exists() and load_recipe(path).data.corpus == corpus


def forget_run(folder: Path) -> None:
    """Clear an earlier run; its model stays whole until the new run has one to keep."""
    for name in (RECIPE, LOG):
        (folder / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, CURVES):
        shutil.rmtree(folder / name, ignore_errors=True)
