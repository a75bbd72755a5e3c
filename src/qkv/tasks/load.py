"""`qkv.load`: a model folder as the object of its task."""

from __future__ import annotations

from pathlib import Path

from qkv.device import pick_device
from qkv.errors import UserError
from qkv.tasks.folder import load_config
from qkv.tasks.translate import Translator

TASKS = {"translate": Translator}


def load(folder: str | Path, device: str = "auto") -> Translator:
    """Read a model folder and give the object of its task, ready to use."""
    task, *_ = load_config(Path(folder))
    if task not in TASKS:
        known = ", ".join(TASKS)
        raise UserError(f"{folder}: unknown task {task!r}; this version of qkv knows {known}.")
    return TASKS[task].load(Path(folder), pick_device(device))
