"""`qkv.load`: a model folder as the object of its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.device import pick_device
from qkv.errors import UserError
from qkv.tasks.folder import load_config
from qkv.tasks.language import LanguageModel
from qkv.tasks.translate import Translator

TASKS: dict[str, type[Translator] | type[LanguageModel]] = {
    "translate": Translator,
    "generate": LanguageModel,
}


def load(folder: str | Path, device: str = "auto") -> Any:
    """Read a model folder and give the object of its task, ready to use."""
    task, *_ = load_config(Path(folder))
    if task not in TASKS:
        known = ", ".join(TASKS)
        raise UserError(f"{folder}: unknown task {task!r}; this version of qkv knows {known}.")
    return TASKS[task].load(Path(folder), pick_device(device))
