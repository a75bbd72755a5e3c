"""Files to read, and what is said of damaged ones."""

import gzip
import io
import lzma
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data import PairItems, Ragged, Specials
from qkv.errors import UserError
from qkv.text import Vocabulary

COMPRESSED = ["", ".gz", ".xz", ".zst"]
SPECIAL = Specials(pad=0, bos=2, eos=3)


def vocabulary(special: np.ndarray, **flags: np.ndarray) -> Vocabulary:
    """Of tokens that each start a word and end nothing, unless flags say otherwise."""
    nothing = np.zeros_like(special)
    usual = dict.fromkeys(Vocabulary.__dataclass_fields__, nothing)
    return Vocabulary(**{**usual, "starts_word": ~nothing, "special": special, **flags})


def of_lengths(*lengths: tuple[int, int]) -> PairItems:
    """Pairs of so many tokens."""
    source, target = ([[7] * pair[side] for pair in lengths] for side in (0, 1))
    return PairItems(Ragged.of(source), Ragged.of(target), SPECIAL)


def compress(content: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(content, mtime=0)  # parts of names of tests, alike in all processes
    if suffix == ".xz":
        return lzma.compress(content)
    if suffix == ".zst":
        zstd: Any = pytest.importorskip("backports.zstd")
        return bytes(zstd.compress(content))
    return content


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, compressed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        compress(content.encode() if isinstance(content, str) else content, path.suffix)
    )
    return path


def write_parquet(path: Path, records: list[dict[str, object]]) -> Path:
    """Write records as a Parquet file, compressed as its name says too."""
    pyarrow = pytest.importorskip("pyarrow")
    content = io.BytesIO()
    import_module("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(records), content)
    return write(path, content.getvalue())


def complaint(read: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    """The one sentence that a reader raises."""
    with pytest.raises(UserError) as caught:
        list(read(*arguments, **more))
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message
