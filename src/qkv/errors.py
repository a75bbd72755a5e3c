"""The one exception that stands for a person's mistake, and how its message shows values."""

from __future__ import annotations

import json


class UserError(Exception):
    """A mistake in what a person gave us: files, values, a recipe.

    The message is one sentence that names the file, line or value, the rule that it breaks and the
    way out. The command line prints it without a traceback and exits with code 2.
    """


def shortened(value: object) -> str:
    """Return the beginning of a value, for a message."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def shown(value: object) -> str:
    """Write a value for a message as JSON does, cut short."""
    return shortened(json.dumps(value, ensure_ascii=False, default=str))


def missing_package(purpose: str, package: str, extra: str = "") -> UserError:
    """Build the error that names a missing package and how it is installed.

    `extra` is the one of pyproject.toml that has it; without, it is a dependency of qkv itself.
    """
    wanted = f'"qkv[{extra}]"' if extra else "qkv"
    return UserError(f"{purpose} needs {package}; run: pip install {wanted}.")
