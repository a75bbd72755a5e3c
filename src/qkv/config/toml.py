"""Plain values as TOML, the part of it that recipes use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_toml(values: Mapping[str, Any]) -> str:
    """Top-level values first, then a section for each mapping."""
    plain = [f"{k} = {_value(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    sections = [
        "\n".join([f"[{name}]", *(f"{k} = {_value(v)}" for k, v in section.items())])
        for name, section in values.items()
        if isinstance(section, Mapping)
    ]
    return "\n\n".join(["\n".join(plain), *sections]) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    # JSON writes booleans, integers and strings as TOML does.
    return json.dumps(value, ensure_ascii=False)
