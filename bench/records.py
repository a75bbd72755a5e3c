"""The measured figures: one record per row in docs/benchmarks.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs" / "benchmarks.json"

Figure = float | Sequence[float] | str
"""A number; a mean and its standard deviation; or words that are no measurement, like a size."""


@dataclass(frozen=True)
class Record:
    """One row: what was measured, when, on which machine and by which command."""

    key: str
    """Names the row, from the general to the particular, with dots between."""
    device: str
    """"cpu" or "cuda"."""
    name: str
    """The row's label in a table."""
    ours: float | Mapping[str, Figure]
    """One figure that is compared with peers, or a figure for each column."""
    peers: Mapping[str, float]
    unit: str
    date: str
    machine: str
    versions: Mapping[str, str]
    command: str
    check: str = ""
    """How the results of both sides were compared."""
    details: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Further figures of ours ("qkv") and of the peers, by their unit."""
    ratio: float | None = field(init=False)
    """Ours over the better peer."""

    def __post_init__(self) -> None:
        best = self.peers[self.best_peer] if self.peers else 0.0
        ratio = self.ours / best if best and isinstance(self.ours, float | int) else None
        object.__setattr__(self, "ratio", ratio and round(ratio, 3))

    @property
    def best_peer(self) -> str:
        """The fastest of the others; another way of our own counts where there is nobody else."""
        others = [name for name in self.peers if not name.startswith("qkv")]
        return max(others or self.peers, key=lambda name: self.peers[name])

    def describe(self) -> str:
        """Return the row as one line of text."""
        columns = self.ours if isinstance(self.ours, Mapping) else {"qkv": self.ours, **self.peers}
        figures = ", ".join(f"{column} {shown(figure)}" for column, figure in columns.items())
        ratio = "" if self.ratio is None else f"; ratio {self.ratio:.2f}"
        check = f"; {self.check}" if self.check else ""
        details = "".join(
            f"; {unit}: {', '.join(f'{side} {shown(value)}' for side, value in sides.items())}"
            for unit, sides in self.details.items()
        )
        return f"{self.name}: {figures} {self.unit}{ratio}{details}{check}"


def shown(figure: Figure) -> str:
    """Format a figure as tables show it."""
    if isinstance(figure, str):
        return figure
    if isinstance(figure, Sequence):
        mean, deviation = figure
        return f"{mean:.1f} ± {deviation:.1f}"
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.6g}"


def load(path: Path = FILE) -> list[Record]:
    """Read all records."""
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return [
        Record(**{name: value for name, value in row.items() if name != "ratio"}) for row in rows
    ]


def save(records: Iterable[Record], path: Path = FILE) -> None:
    """Add records to the file; each replaces the earlier one of its key and device."""
    merged = {(record.key, record.device): record for record in [*load(path), *records]}
    lines = [json.dumps(dataclasses.asdict(r), ensure_ascii=False) for r in merged.values()]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
