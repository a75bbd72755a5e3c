"""`qkv.load`: a model as the object of its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv import tasks
from qkv.config import TASKS
from qkv.convert.model_folder import StoredModel, load_config
from qkv.convert.opening import open_model
from qkv.device import pick_device
from qkv.errors import UserError


def load(
    name: str | Path | StoredModel,
    device: str = "auto",
    dtype: str | None = None,
    adapter: str | Path | None = None,
) -> Any:
    """Load a model by its path or its packaged or pulled name, as the object of its task.

    It may be a model folder of ours or of Hugging Face's, or a GGUF file. `dtype` is what its
    weights become: "fp32", "bf16", "int8" or "int4"; by default float32 on a CPU and bfloat16 on a
    GPU, and weights that are stored in 8 or 4 bits stay so. `adapter` is the folder of a LoRA
    adapter for it: updates are added to weights that are floats, and kept beside integers.
    """
    stored = open_model(name, dtype, adapter)
    task, model, _ = load_config(stored)
    if task not in TASKS:
        known = ", ".join(TASKS)
        raise UserError(f"{name}: unknown task {task!r}; this version of qkv knows {known}.")
    reads_images = task == "classify" and model.patch_size
    kind = getattr(tasks, "ImageClassifier" if reads_images else TASKS[task].result)
    return kind.load(stored, pick_device(device))
