"""Files to read, and what is said of damaged ones."""

import gzip
import io
import lzma
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import UserError

COMPRESSED = ["", ".gz", ".xz", ".zst"]


def compress(content: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(content)
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
