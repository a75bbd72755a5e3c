"""The formats that a model can be written in, and what rules one of them out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

from qkv.config import ModelConfig
from qkv.convert.model_folder import (
    StoredModel,
    converted_tensors,
    load_config,
    load_prompting,
    load_tokenizers,
    save_model_folder,
)
from qkv.convert.opening import open_model
from qkv.errors import UserError


def write_qkv(stored: StoredModel, folder: Path) -> None:
    """Write a model folder of ours."""
    from qkv.convert.huggingface.exporting import copy_card

    _, config, _ = load_config(stored)  # a model that could not be read again is not written
    load_prompting(stored)
    tokenizers = None if config.patch_size else load_tokenizers(stored, config)
    weights = converted_tensors(stored, config)
    save_model_folder(folder, stored.full_content(), weights, tokenizers)
    copy_card(stored, folder)


FORMATS = {
    "qkv": ("qkv.convert.formats", "write_qkv"),
    "huggingface": ("qkv.convert.huggingface.exporting", "write_huggingface"),
    "ctranslate2": ("qkv.convert.ctranslate2.specification", "write_ctranslate2"),
}
"""The module and function that write each format; loading a model imports none of them."""


def convert(
    model: str | Path | StoredModel,
    folder: str | Path,
    to: str = "qkv",
    dtype: str | None = None,
    from_pickle: bool = False,
) -> Path:
    """Write a model into a new folder, in the format that is named; all of it or nothing.

    `dtype` is what the weights are stored as: "fp32", "bf16", "int8" or "int4"; by default as they
    are. `from_pickle` reads a folder's pytorch_model.bin, which nothing else does.
    """
    if to not in FORMATS:
        raise UserError(f"Unknown format {to!r}; it may be one of {', '.join(FORMATS)}.")
    if dtype and to != "qkv":
        raise UserError(f"A dtype is for model folders of qkv; convert to {to} without one.")
    module, function = FORMATS[to]
    write: Callable[[StoredModel, Path], None] = getattr(import_module(module), function)
    with _new_folder(Path(folder)) as beside, ExitStack() as temporary:
        if from_pickle:
            from qkv.convert.huggingface.pickled import open_pickled

            model = temporary.enter_context(open_pickled(model, beside))
        write(open_model(model, dtype), beside)
        temporary.close()
    return Path(folder)


def save_huggingface(model: str | Path | StoredModel, folder: str | Path) -> Path:
    """Write a folder that transformers loads."""
    return convert(model, folder, "huggingface")


def save_qkv(model: str | Path | StoredModel, folder: str | Path) -> Path:
    """Write a model folder of ours."""
    return convert(model, folder, "qkv")


def export_problems(config: ModelConfig, task: str) -> list[str]:
    """Name each format that a model of this config cannot be exported to, and why.

    The config alone decides it, so that it can be said before the model is trained.
    """
    from qkv.convert.ctranslate2.specification import lacking
    from qkv.convert.huggingface.fitting import fitting

    problems = []
    try:
        fitting(config, task)
    except UserError as error:
        problems.append(f"huggingface: {error}")
    if part := lacking(config):
        problems.append(f"ctranslate2: CTranslate2 has no {part}.")
    return problems


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside the wanted one, which is moved there when it is whole."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already and not empty; name another folder.")
    target = folder.resolve()  # of "." and of links the folder that is meant
    beside = target.with_name(f".{target.name}.{os.getpid()}.writing")
    shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed
    try:
        beside.mkdir(parents=True)
        yield beside
        if target.exists():
            target.rmdir()
        beside.rename(target)
    except OSError as error:  # said of the name that people know
        error.filename = str(error.filename or folder).replace(str(beside), str(folder))
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
