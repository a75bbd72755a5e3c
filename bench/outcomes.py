"""What trials of reliability found: one record per trial in docs/reliability.json."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "docs" / "reliability.json"


def load(path: Path = FILE) -> dict[str, dict[str, Any]]:
    """Read all records by name."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def save(name: str, outcome: dict[str, Any], module: str, path: Path = FILE) -> None:
    """Replace the record of a trial, with today's date and the command that was run."""
    command = " ".join(["python -m", module, *sys.argv[1:]])
    records = load(path) | {name: {**outcome, "date": str(date.today()), "command": command}}
    lines = (f"{json.dumps(key)}: {json.dumps(records[key])}" for key in sorted(records))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
