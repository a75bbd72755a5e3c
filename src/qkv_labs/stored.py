"""Stored results as the labs' own dataclasses, so that code may judge and draw them anew."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from qkv_labs.catalogue import find
from qkv_labs.lab import Lab
from qkv_labs.runner import Report


def rebuild(kind: Any, value: Any) -> Any:
    """Turn JSON into a value of this type; null stands for infinity unless None is allowed."""
    if isinstance(kind, UnionType):
        [some] = [part for part in get_args(kind) if part is not NoneType]
        return None if value is None else rebuild(some, value)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: rebuild(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    if get_origin(kind) is list:
        return [rebuild(get_args(kind)[0], part) for part in value]
    if get_origin(kind) is tuple:
        return tuple(map(rebuild, get_args(kind), value))
    if get_origin(kind) is dict:
        return {name: rebuild(get_args(kind)[1], part) for name, part in value.items()}
    return math.inf if value is None else value


def measured(lab: Lab[Any], content: Any) -> Any:
    """Return what a lab measured, from the `measured` of its JSON."""
    return rebuild(get_type_hints(lab.measure)["return"], content)


def read_report(path: Path) -> Report:
    """Read a result and judge its figures by the lab's present code."""
    content = json.loads(path.read_text(encoding="utf-8"))
    lab = find(content["name"])
    figures = measured(lab, content["measured"])
    run = ("seconds", "full", "seed", "date", "machine", "versions")
    return Report(
        lab=lab,
        measured=figures,
        tables=lab.tables(figures),
        verdict=lab.judge(figures),
        **{name: content[name] for name in run},
    )
