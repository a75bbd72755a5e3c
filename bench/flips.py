"""Single flipped bits in files of a run: found, or harmless; never read as something else."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.data.corpus.shards import cached_examples
from qkv.errors import UserError
from qkv.training.checkpoint import read_checked, read_state

Counts = dict[str, int]


def flipped(content: bytes, bit: int) -> bytes:
    """Return the content with one bit changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def count_flips(
    path: Path, read: Callable[[], Any], same: Callable[[Any], bool], draw: random.Random, n: int
) -> Counts:
    """Flip n bits of a file one after the other; count what `read` makes of it."""
    whole = path.read_bytes()
    counts = {"flips": n, "refused": 0, "harmless": 0, "unnoticed": 0}
    for _ in range(n):
        path.write_bytes(flipped(whole, draw.randrange(8 * len(whole))))
        try:
            outcome = "harmless" if same(read()) else "unnoticed"
        except UserError:
            outcome = "refused"
        counts[outcome] += 1
    path.write_bytes(whole)
    return counts


def _bits(tensors: Any) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in dict(tensors).items()}


def flip_checkpoint(folder: Path, scratch: Path, draw: random.Random, n: int) -> Counts:
    """Flip bits of the newest checkpoint."""
    path = max((folder / "checkpoints").glob("step-*.safetensors"))

    def read() -> Any:
        return read_state(path), _bits(read_checked(path))

    before = read()
    return count_flips(path, read, lambda found: found == before, draw, n)


def flip_model(folder: Path, scratch: Path, draw: random.Random, n: int) -> Counts:
    """Flip bits of model.safetensors."""
    copy = shutil.copytree(folder, scratch / "model", ignore=lambda *_: ["checkpoints"])

    def read() -> Any:
        return _bits(qkv.load(copy, "cpu").model.named_parameters())

    before = read()
    return count_flips(copy / "model.safetensors", read, lambda found: found == before, draw, n)


def flip_data(folder: Path, scratch: Path, draw: random.Random, n: int) -> Counts:
    """Flip bits of an array in the cache of encoded data and of its index."""
    words = [f"word {number}" for number in range(500)]
    root = scratch / "tokens"

    def read() -> Any:
        encode = lambda some: {"ids": np.array([len(word) for word in some], "<u2")}  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cached_examples(words, "flips", encode, root)["ids"].tolist()

    before = read()
    (entry,) = (path for path in root.iterdir() if path.is_dir())
    counts: Counts = {}
    for name in ("ids.bin", "index.json"):
        found = count_flips(entry / name, read, lambda found: found == before, draw, n // 2)
        counts = {key: counts.get(key, 0) + value for key, value in found.items()}
    return counts  # a damaged entry is encoded again, so that reading it is harmless


FLIPS = {"checkpoint": flip_checkpoint, "model": flip_model, "encoded data": flip_data}
