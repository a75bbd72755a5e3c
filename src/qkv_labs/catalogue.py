"""The list of labs; each is imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv_labs.lab import Lab

NAMES = (  # numbers count from 1 in this order
    "scale",
    "saturation",
    "score_functions",
    "tied",
    "order",
    "positions",
    "residual",
    "norm",
    "heads",
    "masks",
    "teacher_forcing",
    "serial",
    "recurrent",
    "cost",
    "bidirectional",
    "embeddings",
    "families",
    "decoding",
    "masking",
    "pretraining",
    "few_shot",
    "instruction",
    "sampling",
    "query_key",
    "feed_forward",
    "relations",
)


def find(name: str) -> Lab[Any]:
    """Return the lab of this name or number; `score-functions` is `score_functions`."""
    key = name.strip().lower().replace("-", "_")
    if key.isdecimal() and 1 <= int(key) <= len(NAMES):
        key = NAMES[int(key) - 1]
    if key not in NAMES:
        near = difflib.get_close_matches(key, NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it may be one of {_all_names()}."
        raise UserError(f"There is no lab {name!r}; {hint}")
    return importlib.import_module(f"qkv_labs.{key}").LAB


def _all_names() -> str:
    return ", ".join(sorted(NAMES))


def all_labs() -> tuple[Lab[Any], ...]:
    """Return all labs in order."""
    return tuple(map(find, NAMES))
