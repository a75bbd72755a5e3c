"""The doors: parse, call, print."""

from __future__ import annotations

import errno
import io
import os
import sys

from qkv.errors import UserError

INTERRUPTED = 130  # what typer exits with after Ctrl-C; a reader who leaves (`| head`) gives 1


def main() -> None:
    """Run the command line; a person's mistake ends in one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no Chinese gets escapes instead
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Threads that wait by spinning slow training tenfold as soon as another program wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported
    from qkv.cli.app import app

    try:
        app()
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        _fail(_describe(error))
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("qkv: stopped", file=sys.stderr)
        raise


def _fail(sentence: str) -> None:
    print(f"qkv: {sentence}", file=sys.stderr)
    sys.exit(2)


def _describe(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        where = f" while writing {error.filename}" if error.filename else ""
        return (
            f"The disk is full{where}; free some space and run the command again "
            f"(with --resume for training). What was there before is untouched."
        )
    return f"{error.strerror or error}: {error.filename}." if error.filename else f"{error}."
