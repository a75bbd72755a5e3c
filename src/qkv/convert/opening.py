"""Open any model that a person names: a folder of ours, of Hugging Face's, or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from qkv.convert.huggingface.importing import is_foreign, open_huggingface
from qkv.convert.model_folder import CONFIG, StoredModel, open_model_folder, read_config
from qkv.shelf import find_model

GGUF = ".gguf"


def open_model(name: str | Path | StoredModel) -> StoredModel:
    """Open a model by its path, or by the name that it was pulled under."""
    if isinstance(name, StoredModel):
        return name
    path = _single_gguf(find_model(name))
    if path.suffix.lower() == GGUF:
        from qkv.convert.gguf.gguf_model import open_gguf

        return open_gguf(path)
    config = read_config(path)
    return open_huggingface(path, config) if is_foreign(config) else open_model_folder(path, config)


def _single_gguf(path: Path) -> Path:
    """The GGUF file that is all of a model in a folder, or else the path itself."""
    if not path.is_dir() or (path / CONFIG).exists():
        return path
    files = [file for file in path.glob("*") if file.suffix.lower() == GGUF]
    return files[0] if len(files) == 1 else path
