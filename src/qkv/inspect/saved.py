"""Traces on disk: PATH.npz holds the numbers, PATH.json says what they are."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.files import replacing, write_json

if TYPE_CHECKING:
    from qkv.inspect.compare import Comparison
    from qkv.inspect.trace import Trace


class SavedTrace:
    """A trace that was saved: it can be read and compared, but not asked for more than it holds."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about

    def __iter__(self) -> Iterator[str]:
        return iter(self.about["quantities"])

    def __contains__(self, key: object) -> bool:
        return key in self.about["quantities"]

    def __len__(self) -> int:
        return len(self.about["quantities"])

    def __getitem__(self, key: str) -> Tensor:
        return self.peek([key])[key]

    def keys(self) -> list[str]:
        """Names of the quantities that were saved, in the order of the formulas."""
        return list(self)

    def peek(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """Read several quantities."""
        for key in keys:
            self._find(key)
        try:
            with np.load(self.path) as arrays:
                return {key: torch.from_numpy(arrays[key]) for key in keys}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(
                f"{self.path} is missing or not whole ({error}); save the trace again."
            ) from error

    def axes(self, key: str) -> tuple[str, ...]:
        """The letters of a quantity's dimensions."""
        return tuple(self._find(key)["axes"])

    def shape(self, key: str) -> tuple[int, ...]:
        """A quantity's shape."""
        return tuple(self._find(key)["shape"])

    def formula(self, key: str) -> str:
        """How a quantity is made, in the notes' symbols."""
        return str(self._find(key)["formula"])

    def tokens(self, side: str = "source", row: int = 0) -> list[str]:
        """The tokens that were read on one side."""
        if side not in self.about["tokens"]:
            raise UserError(f"{self.path} has no {side}.")
        rows = self.about["tokens"][side]
        if not -len(rows) <= row < len(rows):
            raise UserError(f"{self.path} has no row {row}: there are {len(rows)}, from 0 on.")
        return list(rows[row])

    def compare(self, other: Trace | SavedTrace, pattern: str = "*") -> Comparison:
        """How each quantity differs from another trace's."""
        from qkv.inspect.compare import compare

        return compare(self, other, pattern)

    def _find(self, key: str) -> dict[str, Any]:
        if key not in self:
            raise UserError(f"{self.path} holds no quantity {key!r}; see keys().")
        found: dict[str, Any] = self.about["quantities"][key]
        return found


def save(trace: Trace, path: Path, patterns: Sequence[str]) -> Path:
    """Write the quantities that match, layer by layer, so that no more than one layer is held."""
    arrays, about = _paths(path)
    names = [key for key in trace if any(key in trace.keys(one) for one in patterns)]
    if not names:
        raise UserError(f"This trace has no quantity like {', '.join(patterns)}; see trace.keys().")
    with replacing(arrays) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for _, keys in groupby(names, key=lambda key: key.split(".")[:2]):
            for key, value in trace.peek(list(keys)).items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, _array(value), allow_pickle=False)
    write_json(about, _about(trace, names))
    return arrays


def load_trace(path: str | Path) -> SavedTrace:
    """Read a trace that was saved."""
    arrays, about = _paths(Path(path))
    try:
        content = json.loads(about.read_text(encoding="utf-8"))
        if not all(isinstance(content[name], dict) for name in ("quantities", "tokens")):
            raise ValueError("it does not describe a trace")
    except FileNotFoundError as error:
        raise UserError(f"There is no trace {about}; check the path.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{about} is not whole ({error}); save the trace again.") from error
    return SavedTrace(arrays, content)


def _paths(path: Path) -> tuple[Path, Path]:
    whole = path.with_suffix("") if path.suffix in (".npz", ".json") else path
    return whole.with_name(f"{whole.name}.npz"), whole.with_name(f"{whole.name}.json")


def _array(value: Tensor) -> np.ndarray[Any, Any]:
    value = value.detach().cpu()
    found: np.ndarray[Any, Any] = (
        value.float() if value.dtype == torch.bfloat16 else value
    ).numpy()
    return found


def _about(trace: Trace, names: Sequence[str]) -> dict[str, Any]:
    from qkv import __version__

    sides = {"source": trace.reading.source, "target": trace.reading.target}
    rows = range(trace.reading.n_rows)
    return {
        "qkv": __version__,
        "model": trace.model.config.to_dict(),
        "sizes": {letter: trace.sizes[letter] for letter in "BSTDHF"},
        "tokens": {
            side: [trace.tokens(side, row) for row in rows] for side in sides if sides[side]
        },
        "changed": [edit.key for edit in trace.edits],
        "quantities": {
            key: {
                "shape": list(trace.shape(key)),
                "axes": list(trace.axes(key)),
                "formula": trace.formula(key),
            }
            for key in names
        },
    }
