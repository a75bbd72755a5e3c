"""Open any model that a person names: a folder of ours, of Hugging Face's, or a GGUF file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from qkv.convert.model_folder import (
    ADAPTER_CONFIG,
    CONFIG,
    StoredModel,
    open_model_folder,
    read_config,
)
from qkv.device import DTYPES
from qkv.errors import UserError
from qkv.shelf import find_model, split_adapter

GGUF = ".gguf"


def open_model(
    name: str | Path | StoredModel, dtype: str | None = None, adapter: str | Path | None = None
) -> StoredModel:
    """Open a model by its path, or by the name that it was pulled under.

    `BASE+ADAPTER` is a model with a LoRA adapter. `dtype` is what its weights become when they are
    loaded, one of `DTYPES`; `adapter`, the folder of a LoRA adapter for it.
    """
    if dtype not in (None, *DTYPES):
        raise UserError(f"Unknown dtype {dtype!r}; it may be one of {', '.join(DTYPES)}.")
    stored = name if isinstance(name, StoredModel) else _open(name)
    if adapter:
        from qkv.convert.adapter import with_adapter

        known = stored.path if isinstance(name, StoredModel) else name
        stored = with_adapter(stored, Path(adapter), str(known))
    return dataclasses.replace(stored, dtype=dtype) if dtype else stored


def _open(name: str | Path) -> StoredModel:
    base, adapter = split_adapter(name)
    if adapter:
        return open_model(base, adapter=adapter)
    path = _single_gguf(find_model(name))
    if path.suffix.lower() == GGUF:
        from qkv.convert.gguf.gguf_model import open_gguf

        return open_gguf(path)
    if (path / ADAPTER_CONFIG).is_file():
        from qkv.convert.adapter import base_of

        return open_model(base_of(path), adapter=path)
    config = read_config(path)
    is_foreign = "model_type" in config or ("architectures" in config and "task" not in config)
    if not is_foreign:
        return open_model_folder(path, config)
    from qkv.convert.huggingface.importing import open_huggingface

    return open_huggingface(path, config)


def _single_gguf(path: Path) -> Path:
    """The GGUF file that is all of a model in a folder, or else the path itself."""
    if not path.is_dir() or (path / CONFIG).exists():
        return path
    files = [file for file in path.glob("*") if file.suffix.lower() == GGUF]
    return files[0] if len(files) == 1 else path
