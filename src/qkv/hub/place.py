"""Where a model is gathered until it is whole, and how it then moves onto the shelf."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from qkv.errors import UserError
from qkv.files import write_json
from qkv.shelf import SOURCE, Pulled, folder_of, home

if sys.platform != "win32":
    import fcntl

FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Arrival:
    """A model on the shelf, and whether it has just come or was there before."""

    model: Pulled
    is_new: bool


def on_shelf(name: str) -> Pulled | None:
    """The model of exactly this name, where there is one."""
    folder = folder_of(name)
    return Pulled(name, folder) if folder.is_dir() else None


@contextmanager
def gathering(name: str) -> Iterator[Path]:
    """Yield the folder where a model is gathered, to one process at a time.

    What lies in it stays there when the work is cut short, so that the next try goes on from it.
    """
    folder = home() / "incoming" / folder_of(name).name
    # The system lets go of the lock when the process ends, however that happens.
    with _opened(folder.with_name(f"{folder.name}.lock")) as lock:
        try:
            if sys.platform != "win32":
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"Another process is pulling {name} at this moment; wait until it is done."
            ) from None
        try:
            folder.mkdir(exist_ok=True)  # not before, for whoever had the lock takes it away
            yield folder
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise UserError(_full(name)) from error


def _opened(lock: Path) -> IO[str]:
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return lock.open("w")
    except OSError as error:
        if error.errno in FULL:
            raise UserError(_full("another model")) from error
        raise UserError(
            f"{home()}, where pulled models stand, cannot be written to ({error.strerror}); set "
            f"QKV_HOME to a folder that can."
        ) from error


def check_room(folder: Path, needed: int) -> None:
    """Say that a disk is too full before the time is spent to fill it."""
    if shutil.disk_usage(folder).free < needed:
        raise UserError(_full(f"another {needed / 1e6:.0f} MB"))


def _full(what: str) -> str:
    return (
        f"The disk of {home()} is too full for {what}; free some space, or set QKV_HOME to a "
        f"folder on another disk, and run the command again."
    )


def put_on_shelf(gathered: Path, name: str, source: dict[str, Any]) -> Pulled:
    """Move a whole model into place, over an older one; a kill never leaves a part of it there."""
    write_json(gathered / SOURCE, {"name": name, **source})
    for file in gathered.rglob("*"):
        if file.is_file():
            with file.open("rb") as content:
                os.fsync(content.fileno())
    final = folder_of(name)
    final.parent.mkdir(parents=True, exist_ok=True)
    before = gathered.with_name("before")
    shutil.rmtree(before, ignore_errors=True)
    if final.exists():
        final.rename(before)
    gathered.rename(final)
    shutil.rmtree(gathered.parent, ignore_errors=True)
    return Pulled(name, final)


def check_sha256(path: Path, expected: str, name: str) -> None:
    """Delete a file that is not the one that was expected, and say so."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        path.unlink()
        raise UserError(
            f"{name} arrived damaged or is another file than expected (sha256 {found[:12]}… "
            f"instead of {expected[:12]}…) and was deleted; run the command again, and if that "
            f"does not help, do not trust where it comes from."
        )
