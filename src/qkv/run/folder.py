"""The run folder: which run owns it, and that no two runs write to it at once."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.config import Recipe, load_recipe, recipe_to_dict, to_toml
from qkv.config.recipe import FORMAT
from qkv.convert.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CARD,
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    check_same_save,
    read_config,
)
from qkv.errors import UserError
from qkv.files import lock, write_json, write_text
from qkv.training.checkpoint import has_checkpoints

RECIPE, LOG, CHECKPOINTS, CURVES = "recipe.toml", "log.jsonl", "checkpoints", "curves"
DATA = "data.json"  # a digest of what the run is trained on and validated with
LOCK = ".lock"
MAY_CHANGE = {
    "train.steps",
    "train.seconds",
    "train.patience",
    "train.checkpoint_every",
    "train.tensorboard",
    "train.shard",
    "train.tensor_parallel",
}
"""Settings that a resumed run need not share with the one before."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process alone; the lock of a killed process is free.

    A run that fails before it writes anything leaves no folder behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        if not lock(file, wait=False):
            file.seek(0)
            raise UserError(
                f"Another run is writing to {folder} (process {file.read().strip() or 'unknown'}); "
                f"wait until it ends, stop it, or choose another folder."
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _delete_torn(folder)
        try:
            yield
        finally:
            if sys.platform != "win32" and [*folder.iterdir()] == [folder / LOCK]:
                (folder / LOCK).unlink()
                folder.rmdir()


def _delete_torn(folder: Path) -> None:
    """Delete what a killed process had begun to write beside the files of a run."""
    for path in [*folder.glob(".*.writing"), *folder.glob("*/.*.writing")]:
        pid = path.name.split(".")[-2]
        if pid.isdigit() and _is_running(int(pid)):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    if pid == os.getpid():
        return False
    if sys.platform == "win32":  # where a signal of 0 is no question
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def check_claim(folder: Path, recipe: Recipe, resume: bool) -> None:
    """Refuse to write over something else, or to resume what is not there or not the same."""
    path = folder / RECIPE
    if resume and not path.exists():
        raise UserError(f"There is no run in {folder} to resume; check its path.")
    if not path.exists():
        for name in (CARD, CONFIG, TOKENIZER, WEIGHTS, ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            if (folder / name).exists():
                raise UserError(
                    f"{folder / name} belongs to something else and would be replaced; choose "
                    f"another folder."
                )
    elif resume:
        _check_same(path, recipe)
    elif has_begun(folder):
        raise UserError(
            f"{folder} holds a run already; resume it (--resume, or resume=True in Python), or "
            f"choose another folder."
        )


def has_begun(folder: Path) -> bool:
    """Whether there is a checkpoint or a model, whole or not."""
    saved = any((folder / name).exists() for name in (WEIGHTS, ADAPTER_WEIGHTS))
    return saved or has_checkpoints(folder / CHECKPOINTS)


def _check_same(path: Path, recipe: Recipe) -> None:
    if not has_begun(path.parent):
        return
    old, new = _settings(load_recipe(path)), _settings(recipe)
    names = sorted((old.keys() | new.keys()) - MAY_CHANGE)
    if different := [name for name in names if old.get(name) != new.get(name)]:
        raise UserError(
            f"{', '.join(different)} differs from the run in {path.parent}; resume with "
            f"`qkv train {path} --out {path.parent} --resume`, or start again in another folder."
        )


def _settings(recipe: Recipe) -> dict[str, object]:
    """Return what differs from the defaults, by names such as train.lr."""
    values = recipe_to_dict(recipe)
    task = values.pop("task")
    settings = {f"{section}.{key}": v for section in values for key, v in values[section].items()}
    # TOML has lists where settings have tuples.
    return {"task": task} | {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}


def check_data(folder: Path, digest: str, resume: bool) -> None:
    """Refuse to resume with other data than the run began with; note what it begins with."""
    path = folder / CHECKPOINTS / DATA
    if resume and path.exists() and json.loads(path.read_text(encoding="utf-8")) != digest:
        raise UserError(
            f"The data has changed since the run in {folder} began, so that it cannot be resumed "
            f"exactly; restore the data, or start again in another folder."
        )
    write_json(path, digest)


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write what differs from the defaults, with the format's number."""
    write_text(folder / RECIPE, to_toml({"format": FORMAT, **recipe_to_dict(recipe)}))


def is_one_save(folder: Path) -> bool:
    """Whether the files of the folder's model were all written by one save."""
    weights = ADAPTER_WEIGHTS if (folder / ADAPTER_WEIGHTS).exists() else WEIGHTS
    try:
        check_same_save(folder, weights, read_config(folder))
    except UserError:
        return False
    return True


def is_run_on(folder: Path, corpus: str) -> bool:
    """Whether the folder holds an earlier run on this packaged corpus (or on none, if "")."""
    path = folder / RECIPE
    return path.exists() and load_recipe(path).data.corpus == corpus


def forget_run(folder: Path) -> None:
    """Delete an earlier run; its model stays whole until the new run has one to save."""
    for name in (RECIPE, LOG):
        (folder / name).unlink(missing_ok=True)
    for name in (CHECKPOINTS, CURVES):
        shutil.rmtree(folder / name, ignore_errors=True)
