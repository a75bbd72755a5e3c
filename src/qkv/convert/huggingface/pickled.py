"""Pickled weights, read where somebody asks for it: written anew as safetensors, then opened."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.child_process import OVER_LIMIT, run_worker
from qkv.convert.huggingface.foreign_checkpoint import indexed_files
from qkv.convert.huggingface.importing import open_huggingface
from qkv.convert.model_folder import StoredModel, read_config
from qkv.errors import UserError
from qkv.files import refuse_special
from qkv.shelf import find_model

PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
WORKER = Path(__file__).with_name("pickle_worker.py")
TOO_LARGE, BROKEN = 3, 4  # the worker's exit codes
# What a worker may take, for any file and for each byte of the files. Tensors are held twice, as
# they were read and as they are written; floats that share memory are written more than once.
SECONDS, SECONDS_A_BYTE = 60.0, 1 / 20e6
N_BYTES, BYTES_A_BYTE = 2**30, 5


@contextmanager
def open_pickled(name: str | Path | StoredModel, beside: Path) -> Iterator[StoredModel]:
    """Open a Hugging Face folder whose weights are pickles.

    They are written as safetensors into a temporary folder within `beside`.
    """
    if isinstance(name, StoredModel):
        raise UserError(f"{name.path} is open already; name the folder that has {PICKLED}.")
    folder = find_model(name)
    files = _pickles(folder)
    with tempfile.TemporaryDirectory(prefix=".qkv-weights-", dir=beside) as temporary:
        written = [Path(temporary) / f"{number}.safetensors" for number in range(len(files))]
        _convert(folder, dict(zip(files, written, strict=True)))
        yield open_huggingface(folder, read_config(folder), written)


def _pickles(folder: Path) -> list[Path]:
    if (folder / PICKLED_INDEX).is_file():
        files = indexed_files(folder, PICKLED_INDEX)
    elif (folder / PICKLED).exists():
        files = [folder / PICKLED]
    else:
        raise UserError(
            f"{folder} has no {PICKLED}; --from-pickle is for models that have their weights in "
            f"such a file, so leave it out."
        )
    refuse_special(*files)
    return files


def _convert(folder: Path, files: dict[Path, Path]) -> None:
    size = sum(file.stat().st_size for file in files)
    request = {
        "files": [(str(file.absolute()), str(target)) for file, target in files.items()],
        "n_bytes": N_BYTES + BYTES_A_BYTE * size,
        "too_large": TOO_LARGE,
        "broken": BROKEN,
    }
    seconds = SECONDS + SECONDS_A_BYTE * size
    first = next(iter(files))
    try:
        run = run_worker(WORKER, request, seconds)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{first} takes more than {seconds:.0f} seconds to read; something is wrong with it, "
            f"or with this machine's disk: take the model from somewhere else."
        ) from error
    reason = run.stderr.decode(errors="replace").split("\n")
    if run.returncode == BROKEN:
        raise UserError(
            f"{folder / reason[0]} cannot be read: {' '.join(reason[1:])}; take the model from "
            f"somewhere else, best with model.safetensors."
        )
    if run.returncode == TOO_LARGE or run.returncode in OVER_LIMIT:
        name = folder / reason[0] if run.returncode == TOO_LARGE else first
        raise UserError(
            f"{name} asks for more memory than a file of its size should need; do not trust it, "
            f"and take the model from somewhere else."
        )
    if run.returncode:
        last = next((line for line in reversed(reason) if line.strip()), "no reason was given")
        raise UserError(f"{first} cannot be read ({last[:200]}); check the disk and the file.")
