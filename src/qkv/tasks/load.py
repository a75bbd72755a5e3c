"""`qkv.load`: a model folder as the object of its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.device import pick_device
from qkv.errors import UserError
from qkv.tasks.answer import Answerer
from qkv.tasks.classify import Classifier
from qkv.tasks.encoder import Encoder
from qkv.tasks.folder import Where, load_config
from qkv.tasks.language import LanguageModel
from qkv.tasks.tag import Tagger
from qkv.tasks.translate import Translator
from qkv.tasks.vision import ImageClassifier

TASKS: dict[str, Any] = {
    "translate": Translator,
    "denoise": Translator,
    "generate": LanguageModel,
    "fill": Encoder,
    "embed": Encoder,
    "classify": Classifier,
    "tag": Tagger,
    "answer": Answerer,
}


def load(folder: str | Where, device: str = "auto") -> Any:
    """Read a model folder and give the object of its task, ready to use."""
    where = Path(folder) if isinstance(folder, str) else folder
    task, model, _ = load_config(where)
    if task not in TASKS:
        known = ", ".join(TASKS)
        raise UserError(f"{folder}: unknown task {task!r}; this version of qkv knows {known}.")
    sees = task == "classify" and model.patch_size  # else it reads
    kind = ImageClassifier if sees else TASKS[task]
    return kind.load(where, pick_device(device))
