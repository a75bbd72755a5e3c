"""`qkv.load`: a model as the object of its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from qkv import tasks
from qkv.convert.model_folder import StoredModel
from qkv.convert.opening import open_model
from qkv.tasks.task_object import object_of


def load(
    name: str | Path | StoredModel,
    device: str | torch.device = "auto",
    dtype: str | None = None,
    adapter: str | Path | None = None,
) -> Any:
    """Load a model by its path or its packaged or pulled name, as the object of its task.

    It may be a model folder of ours or of Hugging Face's, or a GGUF file. `dtype` is what its
    weights become: "fp32", "bf16", "int8" or "int4"; by default float32 on a CPU and bfloat16 on a
    GPU, and weights that are stored in 8 or 4 bits stay so. `adapter` is the folder of a LoRA
    adapter for it: updates are added to weights that are floats, and kept beside integers. Editors
    and type checkers know more of `qkv.Translator.load(name)` and its like.
    """
    stored = open_model(name, dtype, adapter)
    return getattr(tasks, object_of(stored)).load(stored, device)
