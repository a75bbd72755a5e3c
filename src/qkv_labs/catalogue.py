"""Which labs there are; each is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from qkv.config.fields import suggestion
from qkv.errors import UserError
from qkv_labs.lab import Lab

NAMES = (
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
    "logits",
    "query_key",
)
# Numbers count from 1 in this order


def find(name: str) -> Lab[Any]:
    """The lab of this name or number; `score-functions` is `score_functions`."""
    asked = name.strip().lower().replace("-", "_")
    if asked.isdecimal() and 1 <= int(asked) <= len(NAMES):
        asked = NAMES[int(asked) - 1]
    if asked not in NAMES:
        raise UserError(f"There is no lab {name!r}{suggestion(asked, NAMES)}")
    return importlib.import_module(f"qkv_labs.{asked}").LAB


def all_labs() -> tuple[Lab[Any], ...]:
    """All labs in their order."""
    return tuple(map(find, NAMES))
