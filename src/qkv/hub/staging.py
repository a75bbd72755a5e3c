"""Staging: where a model's files arrive until all are there, and the move onto the shelf."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from qkv.errors import UserError
from qkv.files import lock, write_json
from qkv.shelf import SOURCE, Pulled, folder_of, home

FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Arrival:
    """A model on the shelf, and whether it has just been fetched."""

    model: Pulled
    is_new: bool


def on_shelf(name: str) -> Pulled | None:
    """Return the pulled model of exactly this name; None where there is none."""
    folder = folder_of(name)
    return Pulled(name, folder) if folder.is_dir() else None


@contextmanager
def staging_folder(name: str) -> Iterator[Path]:
    """Yield the folder in which a model's files arrive, to one process at a time.

    After an interruption its files stay, so that the next try continues from them.
    """
    folder = home() / "incoming" / folder_of(name).name
    with _opened(folder.with_name(f"{folder.name}.lock")) as file:
        if not lock(file, wait=False):
            raise UserError(
                f"Another process is pulling {name} at this moment; wait until it is done."
            )
        try:
            folder.mkdir(exist_ok=True)  # only now: the process that had the lock removes it
            yield folder
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise UserError(_full(name)) from error


def _opened(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")
    except OSError as error:
        if error.errno in FULL:
            raise UserError(_full("another model")) from error
        raise UserError(
            f"{home()}, the folder of pulled models, cannot be written to ({error.strerror}); set "
            f"QKV_HOME to a folder that can."
        ) from error


def check_room(folder: Path, needed: int) -> None:
    """Raise an error if the disk has less free space than is needed."""
    if shutil.disk_usage(folder).free < needed:
        raise UserError(_full(f"another {needed / 1e6:.0f} MB"))


def _full(what: str) -> str:
    return (
        f"The disk of {home()} is too full for {what}; free some space, or set QKV_HOME to a "
        f"folder on another disk, and run the command again."
    )


def put_on_shelf(staged: Path, name: str, source: dict[str, Any]) -> Pulled:
    """Move a complete model into place, over an older one; a kill never leaves a partial one."""
    write_json(staged / SOURCE, {"name": name, **source})
    for file in staged.rglob("*"):
        if file.is_file():
            with file.open("rb") as content:
                os.fsync(content.fileno())
    final = folder_of(name)
    final.parent.mkdir(parents=True, exist_ok=True)
    before = staged.with_name("before")
    shutil.rmtree(before, ignore_errors=True)
    if final.exists():
        final.rename(before)
    staged.rename(final)
    shutil.rmtree(staged.parent, ignore_errors=True)
    return Pulled(name, final)


def check_sha256(path: Path, expected: str, name: str) -> None:
    """Raise an error for a file that has another hash, and delete it."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        path.unlink()
        raise UserError(
            f"{name} arrived damaged or is another file than expected (sha256 {actual[:12]}… "
            f"instead of {expected[:12]}…) and was deleted; run the command again, and if that "
            f"does not help, do not trust where it comes from."
        )
