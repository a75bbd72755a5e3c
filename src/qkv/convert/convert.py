"""`qkv convert`: a model from whoever wrote it, to whoever shall read it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.convert.export import copy_card, write_huggingface
from qkv.convert.opening import open_model
from qkv.convert.weights import read_fitting
from qkv.errors import UserError
from qkv.files import write_json
from qkv.tasks.folder import (
    CONFIG,
    WEIGHTS,
    Source,
    load_config,
    load_prompting,
    load_tokenizers,
)
from qkv.weights import write_tensors


def write_qkv(source: Source, folder: Path) -> None:
    """Write a model folder of ours."""
    _, config, _ = load_config(source)  # what could not be read again is not written either
    load_prompting(source)
    if not config.patch_size:
        load_tokenizers(source, config).save(folder)
    write_json(folder / CONFIG, dict(source.content))
    write_tensors(folder / WEIGHTS, dict(read_fitting(source, config)), {"format": "pt"})
    copy_card(source, folder)


def _write_ctranslate2(source: Source, folder: Path) -> None:
    from qkv.convert.ctranslate2 import write_ctranslate2

    write_ctranslate2(source, folder)


FORMATS: dict[str, Callable[[Source, Path], None]] = {
    "qkv": write_qkv,
    "huggingface": write_huggingface,
    "ctranslate2": _write_ctranslate2,
}


def convert(model: str | Path | Source, folder: str | Path, to: str = "qkv") -> Path:
    """Write a model into a new folder, in the format that is named; all of it or nothing."""
    if to not in FORMATS:
        raise UserError(f"Unknown format {to!r}; it may be one of {', '.join(FORMATS)}.")
    source = open_model(model)
    with _new_folder(Path(folder)) as beside:
        FORMATS[to](source, beside)
    return Path(folder)


def save_huggingface(model: str | Path | Source, folder: str | Path) -> Path:
    """Write a folder that transformers loads."""
    return convert(model, folder, "huggingface")


def save_qkv(model: str | Path | Source, folder: str | Path) -> Path:
    """Write a model folder of ours."""
    return convert(model, folder, "qkv")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the one that shall be there, which takes its place when it is whole."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already and not empty; name another folder.")
    place = folder.resolve()  # of "." and of links the folder that is meant
    beside = place.with_name(f".{place.name}.{os.getpid()}.writing")
    shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed
    try:
        beside.mkdir(parents=True)
        yield beside
        if place.exists():
            place.rmdir()
        beside.rename(place)
    except OSError as error:  # said of the name that people know
        error.filename = str(error.filename or folder).replace(str(beside), str(folder))
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
