"""The doors: parse, call, print."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
import threading
import warnings
from typing import TextIO

from qkv.allocator import keep_freed_memory
from qkv.errors import UserError

INTERRUPTED = 130  # typer's exit code after Ctrl-C; that of a closed pipe (`| head`) is 1


def main() -> None:
    """Run the command line; a person's mistake ends in one sentence and exit code 2."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal without Chinese gets escapes instead
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Threads that wait by spinning slow training tenfold as soon as another program wants a core;
    # without spinning at all, small products on free cores take half as long again.
    if "OMP_WAIT_POLICY" not in os.environ:  # read when torch is first imported
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    keep_freed_memory()
    warnings.showwarning = _show_warning
    # Torch tells itself which of its kernels it took; nobody can do anything about it.
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    gc.set_threshold(20_000)  # importing torch makes many objects and no garbage
    from qkv.cli.app import command_line

    try:
        command_line(sys.argv[1:])(prog_name="qkv")
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        _fail(describe(error))
    except SystemExit as end:
        if (
            end.code == INTERRUPTED and "RANK" not in os.environ
        ):  # of a worker, the launcher says so
            print("qkv: stopped", file=sys.stderr)
        raise


def _open_closed_streams() -> None:
    """Give a process that was started without a standard stream (`<&-`, `>&-`) an empty one."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: PTH123, SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115


def run() -> None:
    """Run the command line as a process of its own, which ends with it."""
    try:
        main()
    except SystemExit as end:
        if not end.code and threading.active_count() == 1:
            _leave()
        raise


def _leave() -> None:
    """End a process that succeeded without taking its modules apart.

    After `import torch` that takes about as long as translating a sentence (`python -c "import
    torch"` beside `python -c "import torch, os; os._exit(0)"`).
    """
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # Python reports a closed pipe as it always does
        return
    os._exit(0)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print what the package warns of as a sentence, without the line of code that did so."""
    text = f"· {message}" if category is UserWarning else f"{category.__name__}: {message}"
    print(text, file=sys.stderr)


def _fail(sentence: str) -> None:
    print(f"qkv: {sentence}", file=sys.stderr)
    sys.exit(2)


WAYS_OUT = {
    errno.ENOSPC: "The disk is full{}; free some space and run the command again (training with "
    "--resume). What was there before is untouched.",
    errno.EDQUOT: "The disk quota is used up{}; free some space and run the command again.",
    errno.EFBIG: "The file is larger than this system allows{}; raise the limit (`ulimit -f`), or "
    "write to another disk.",
    errno.EACCES: "Permission is denied{}; choose another place, or change the permissions with "
    "`chmod`.",
    errno.EPERM: "The system does not permit this{}; choose another place.",
    errno.EROFS: "The disk can only be read{}; write to another place.",
    errno.EISDIR: "A file is needed, but there is a directory{}; name a file in it.",
    errno.ENOTDIR: "A directory is needed, but there is a file{}; check the path.",
    errno.ENOENT: "There is no such file or directory{}; check the path.",
    errno.EEXIST: "Something of that name is there already{}; choose another name.",
    errno.ENAMETOOLONG: "The name is too long for this system{}; choose a shorter one.",
    errno.EMFILE: "Too many files are open at once{}; raise the limit (`ulimit -n`).",
    errno.EIO: "The disk reports an error{}; check it, or use another one.",
}
"""A sentence with a way out for each error of the system; {} is the path."""


def describe(error: OSError) -> str:
    """Say in one sentence what the system refused, and the way out."""
    path = f" ({error.filename})" if error.filename else ""
    sentence = WAYS_OUT.get(error.errno or 0)
    if sentence is None:
        return f"The system reports an error: {error.strerror or error}{path}; check the path."
    return sentence.format(path)
