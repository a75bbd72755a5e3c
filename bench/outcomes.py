"""What trials of reliability found: one record per trial in docs/reliability.json.

`python -m bench.outcomes` writes the tables of docs/reliability.md from it.
"""

from __future__ import annotations

import json
import shlex
import sys
from datetime import date
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "docs" / "reliability.json"
PAGE = FILE.with_suffix(".md")
BEGIN, END = "<!-- {}: written by bench.outcomes -->", "<!-- end of {} -->"
Rows = list[list[str]]


def load(path: Path = FILE) -> dict[str, dict[str, Any]]:
    """Read all records by name."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def save(name: str, outcome: dict[str, Any], module: str, path: Path = FILE) -> None:
    """Replace the record of a trial, with today's date and the command that was run."""
    command = " ".join(["python -m", module, *map(shlex.quote, sys.argv[1:])])
    records = load(path) | {name: {**outcome, "date": str(date.today()), "command": command}}
    lines = (f"{json.dumps(key)}: {json.dumps(records[key])}" for key in sorted(records))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def trial_rows(records: dict[str, dict[str, Any]]) -> Rows:
    """List the trials of bench.reliability but the faults: what was done and what came of it."""
    rows = [["trial", "what came of it", "command, date"], ["---"] * 3]
    for name, record in records.items():
        if not name.startswith("fuzz.") and name != "faults":
            shown = {k: v for k, v in record.items() if k not in ("command", "date", "passed")}
            figures = "; ".join(f"{key} {_figure(value)}" for key, value in shown.items())
            rows.append([name, figures, f"`{record['command']}`, {record['date']}"])
    return rows


def _figure(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_figure(v)}" for key, v in value.items()) + ")"
    if isinstance(value, list):
        return " → ".join(map(_figure, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def fault_rows(records: dict[str, dict[str, Any]]) -> Rows:
    """List the faults: how often tried, the sentence, and whether it then ended undisturbed."""
    rows = [["fault", "tried", "sentence", "passed", "command, date"], ["---"] * 5]
    faults = records.get("faults", {})
    for name, record in faults.items():
        if isinstance(record, dict):
            passed = "yes" if record["passed"] else "no"
            tried, command = record.get("tried", 1), f"`{faults['command']}`, {faults['date']}"
            rows.append([name, f"{tried}", record["said"], passed, command])
    return rows


def fuzz_rows(records: dict[str, dict[str, Any]]) -> Rows:
    """List the readers that were fuzzed, with their counts."""
    heads = ["reader", "cases", "read", "refused", "failed", "ms a case", "command, date"]
    rows = [heads, ["---"] * len(heads)]
    for name, record in records.items():
        if name.startswith("fuzz."):
            counts = [f"{record[key]:,}" for key in ("cases", "read", "refused", "failed")]
            command = f"`{record['command']}`, {record['date']}"
            spent = str(record.get("ms a case", ""))
            rows.append([name.removeprefix("fuzz."), *counts, spent, command])
    return rows


def main() -> None:
    """Write the tables into the page, between their marks."""
    page, records = PAGE.read_text("utf-8"), load()
    for name, rows in (
        ("trials", trial_rows(records)),
        ("faults", fault_rows(records)),
        ("fuzz", fuzz_rows(records)),
    ):
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        page = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
