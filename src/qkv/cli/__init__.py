"""The doors: parse, call, print."""

from __future__ import annotations

import errno
import os
import sys

from qkv.errors import UserError


def main() -> None:
    """Run the command line; a person's mistake ends in one sentence and exit code 2."""
    from qkv.cli.app import app

    try:
        app()
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has left
        sys.exit(0)
    except OSError as error:
        _fail(_describe(error))
    except KeyboardInterrupt:
        print("qkv: stopped", file=sys.stderr)
        sys.exit(130)


def _fail(sentence: str) -> None:
    print(f"qkv: {sentence}", file=sys.stderr)
    sys.exit(2)


def _describe(error: OSError) -> str:
    if error.errno == errno.ENOSPC or "No space left" in str(error):
        where = f" while writing {error.filename}" if error.filename else ""
        return (
            f"The disk is full{where}; free some space and run the command again "
            f"(with --resume for training). What was there before is untouched."
        )
    return f"{error.strerror or error}: {error.filename}." if error.filename else f"{error}."
