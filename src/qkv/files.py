"""Small files: read with clear errors, and written whole or not at all, whatever happens."""

import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from qkv.errors import UserError

if sys.platform != "win32":
    import fcntl

HALF = re.compile(r"\\u[dD][89a-fA-F]")
SPECIAL_FILES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special(*paths: Path) -> None:
    """Refuse a folder, pipe, socket or device where a file belongs: reading one could never end.

    A path that does not exist is left to its reader.
    """
    for path in paths:
        try:
            kind = SPECIAL_FILES.get(stat.S_IFMT(path.stat().st_mode))
        except OSError:
            continue
        if kind:
            raise UserError(
                f"{path} is {kind}, but must be a file; name another, or put one there."
            )


@contextmanager
def reading(path: Path, what: str = "file") -> Iterator[None]:
    """Say in one sentence why a file cannot be read; `what` it is to the person who named it."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"There is no {what} {path}; check the path.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory; name the {what} in it.") from error
    except PermissionError as error:
        raise UserError(
            f"{path} may not be read; change its permissions, as with chmod u+r."
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); copy it to another disk, or fetch "
            f"it again."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (byte {error.start}); convert it first."
        ) from error


def lock(file: IO[str], wait: bool = True) -> bool:
    """Lock an open file until it is closed; return False where another process holds the lock.

    The system releases the lock of a process that ends, however that happens.
    """
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; move it into place when the block ends well.

    The move is atomic, so that a reader sees the old file or the new one and never a part of it.
    What goes wrong on the way is said of `path`, the name that people know.
    """
    if path.exists() and not path.is_file():
        yield path  # a device or a pipe cannot be moved over
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        beside.chmod(mode)  # safetensors makes files that nobody else may read
        _flush_to_disk(beside)
        beside.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        beside.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or leave the one before it untouched."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def read_values(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no such file."""
    content = read_json(path, {})
    if not isinstance(content, dict):
        raise UserError(f"{path} is no JSON object; fetch it again.")
    return content


def read_json(path: Path, default: Any) -> Any:
    """What a JSON file holds, or the default where there is no such file."""
    refuse_special(path)
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if HALF.search(text):  # a surrogate without the other half, which no library takes
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except (FileNotFoundError, NotADirectoryError):
        return default
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is truncated or not JSON ({error}); fetch it again.") from error


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people: indented, with Chinese and emoji as they are."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
