"""What the labs measured when docs/labs was made, as their own dataclasses."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from qkv_labs import Lab

FOLDER = Path(__file__).parents[2] / "docs" / "labs"


def result(name: str) -> dict[str, Any]:
    """The JSON that a lab wrote."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def measured(lab: Lab[Any]) -> Any:
    """What the lab measured."""
    return rebuilt(get_type_hints(lab.measure)["return"], result(lab.name)["measured"])


def rebuilt(kind: Any, value: Any) -> Any:
    """Turn JSON into a value of this type; null stands for infinity."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: rebuilt(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    if get_origin(kind) is list:
        return [rebuilt(get_args(kind)[0], part) for part in value]
    if get_origin(kind) is tuple:
        return tuple(map(rebuilt, get_args(kind), value))
    if get_origin(kind) is dict:
        return {name: rebuilt(get_args(kind)[1], part) for name, part in value.items()}
    return math.inf if value is None and not isinstance(kind, UnionType) else value
