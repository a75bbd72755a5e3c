"""Traces on disk: PATH.npz holds the numbers, PATH.json describes them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.files import replacing, write_json
from qkv.inspect.trace.notation import GRADIENT, Quantities, Quantity

if TYPE_CHECKING:
    from qkv.inspect.trace.trace import Trace


class SavedTrace(Quantities):
    """A trace read from disk: its quantities can be read and compared, not changed."""

    def __init__(self, path: Path, description: dict[str, Any]) -> None:
        quantities = {
            key: Quantity(
                key,
                "",
                saved["formula"],
                tuple(saved["axes"]),
                is_weight=saved.get("weight", False),
            )
            for key, saved in description["quantities"].items()
        }
        sizes = [
            zip(saved["axes"], saved["shape"], strict=True)
            for saved in description["quantities"].values()
        ]
        super().__init__(quantities, dict(chain.from_iterable(sizes)))
        self.path, self.description = path, description

    def __getitem__(self, key: str) -> Tensor:
        return self.peek([key])[key]

    def peek(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """Read several quantities."""
        for key in keys:
            self.find(key)
        try:
            with np.load(self.path) as arrays:
                return {key: torch.from_numpy(arrays[key]) for key in keys}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(
                f"{self.path} is missing or damaged ({error}); save the trace again."
            ) from error

    def tokens(self, side: str = "source", row: int = 0) -> list[str]:
        """Tokens read on one side."""
        if side not in self.description["tokens"]:
            raise UserError(f"{self.path} has no {side}.")
        rows = self.description["tokens"][side]
        if not -len(rows) <= row < len(rows):
            raise UserError(f"{self.path} has no row {row}; it has {len(rows)}, from 0 on.")
        return list(rows[row])


def save(trace: Trace, path: Path, patterns: Sequence[str]) -> Path:
    """Write the matching quantities one layer at a time, so that few are in memory at once."""
    arrays, description = _paths(path)
    order = {key: number for number, key in enumerate(trace)}
    keys = sorted(
        {key for pattern in patterns for key in trace.names(pattern)},
        key=lambda key: (key.startswith(GRADIENT), order[key.removeprefix(GRADIENT)]),
    )
    if not keys:
        raise UserError(
            f"This trace has no quantity like {', '.join(patterns)}; see trace.names()."
        )
    with replacing(arrays) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for _, group in groupby(keys, key=lambda key: key.split(".")[:2]):
            for key, value in trace.peek(list(group)).items():
                value = value.detach().cpu()
                value = value.float() if value.dtype == torch.bfloat16 else value
                with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, value.numpy(), allow_pickle=False)
    write_json(description, _describe(trace, keys))
    return arrays


def load_trace(path: str | Path) -> SavedTrace:
    """Read a saved trace."""
    arrays, description = _paths(Path(path))
    try:
        content = json.loads(description.read_text(encoding="utf-8"))
        if not isinstance(content["tokens"], dict):
            raise ValueError("it has no tokens")
        return SavedTrace(arrays, content)
    except FileNotFoundError as error:
        raise UserError(f"There is no trace {description}; check the path.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{description} is damaged ({error}); save the trace again.") from error


def _paths(path: Path) -> tuple[Path, Path]:
    stem = path.with_suffix("") if path.suffix in (".npz", ".json") else path
    return stem.with_name(f"{stem.name}.npz"), stem.with_name(f"{stem.name}.json")


def _describe(trace: Trace, keys: Sequence[str]) -> dict[str, Any]:
    from qkv import __version__

    rows = range(trace.inputs.n_rows)
    return {
        "qkv": __version__,
        "model": trace.model.config.to_dict(),
        "sizes": {letter: trace.sizes[letter] for letter in "BSTDHF"},
        "tokens": {side: [trace.tokens(side, row) for row in rows] for side in trace.inputs.sides},
        "changed": [edit.key for edit in trace.edits],
        "quantities": {
            key: {
                "shape": list(trace.shape(key)),
                "axes": list(trace.axes(key)),
                "formula": trace.formula(key),
                "weight": trace.find(key).is_weight,
            }
            for key in keys
        },
    }
