"""Encoded data on disk: arrays made once for each content, mapped into memory, kept in the cache.

An entry is a folder with one file an array and an index.json. It is written in chunks with a
journal beside it, so that encoding that was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from qkv.data.ragged import Ragged, offsets_of
from qkv.errors import UserError
from qkv.files import lock, write_json
from qkv.shelf import home

FORMAT = 4  # goes up when the same data would be encoded in another way
INDEX, JOURNAL = "index.json", "journal.json"
CHECKSUM = "checksum"  # of the index itself
CHUNK = 4096  # examples encoded at a time
HELD = 1 << 20  # bytes held before they are written
FLUSHED = 1 << 24  # bytes written before they are seen to the disk and noted in the journal
BLOCK = 1 << 20  # bytes that have a checksum of their own
CHECKED_WHOLE = 1 << 30  # bytes of an entry; a larger one is not read as a whole to open it
UNUSED_DAYS = 30  # after which an entry is deleted when another one is written
Arrays = Mapping[str, npt.NDArray[Any]]
Encode = Callable[[int, Mapping[str, int]], Iterator["Chunk"]]
"""From the records that are encoded already, and their facts, to the chunks after them."""
Example = TypeVar("Example")


class Chunk(NamedTuple):
    """Some encoded records: how many, their arrays, and numbers to add up in `Shards.facts`."""

    n_records: int
    arrays: Arrays
    facts: Mapping[str, int] = {}


class Shards(Mapping[str, npt.NDArray[Any]]):
    """The arrays of an entry, mapped into memory.

    A large entry is not read as a whole when it is opened: `check` is to be called for what is
    read of it.
    """

    def __init__(self, index: Mapping[str, Any], blocks: Mapping[str, _Blocks]) -> None:
        self.facts: Mapping[str, int] = index["facts"]
        self.digest: str = index["digest"]
        self._blocks = blocks
        self._arrays = {
            name: _mapped(blocks[name].path, dtype, shape)
            for name, (dtype, shape) in index["arrays"].items()
        }

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def check(self, name: str, low: int, high: int) -> None:
        """Raise UserError where items from `low` to `high` differ from their checksums."""
        width = self[name].itemsize * math.prod(self[name].shape[1:])
        blocks = self._blocks[name]
        if not blocks.are_whole(low * width, high * width):
            raise UserError(
                f"{blocks.path} differs from its checksum; delete the folder {blocks.path.parent}, "
                f"so that the data is encoded again."
            )

    def ragged(self, name: str) -> Ragged:
        """Return the sequences whose tokens and lengths were stored under this name."""
        return Ragged(self[name], offsets_of(self[f"{name}.lengths"]))


class _Blocks:
    """A file whose blocks are compared with their checksums, each before it is first read."""

    def __init__(self, path: Path, checksums: Sequence[int]) -> None:
        self.path, self.checksums = path, checksums
        self.checked: set[int] = set()

    def are_whole(self, low: int, high: int) -> bool:
        """Check the blocks that hold the bytes from `low` to `high`."""
        first, last = low // BLOCK, min(-(-high // BLOCK), len(self.checksums))
        for number in [n for n in range(first, last) if n not in self.checked]:
            with self.path.open("rb") as file:
                file.seek(number * BLOCK)
                if zlib.crc32(file.read(BLOCK)) != self.checksums[number]:
                    return False
            self.checked.add(number)
        return True


def cached(key: object, encode: Encode, root: Path | None = None) -> Shards:
    """Open the entry of a key, or make it."""
    name = hashlib.sha256(json.dumps([FORMAT, key]).encode()).hexdigest()[:20]
    root = root or home() / "tokens"
    folder = root / name
    if (entry := _open(folder)) is not None:
        return entry
    with _lock_file(root / f".{name}.lock") as file:
        lock(file)
        entry = _open(folder)
        if entry is None:
            _write(folder, encode)
            entry = _open(folder)
    assert entry is not None
    return entry


def _lock_file(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")
    except OSError as error:
        raise UserError(
            f"{path.parent}, the folder of encoded data, cannot be written to ({error.strerror}); "
            f"set QKV_HOME to a folder that can."
        ) from error


def cached_examples(
    examples: Sequence[Example],
    key: object,
    encode: Callable[[Sequence[Example]], Arrays],
    root: Path | None = None,
) -> Shards:
    """Encode examples a chunk at a time; `key` names all else that the arrays depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))

    def chunks(done: int, facts: Mapping[str, int]) -> Iterator[Chunk]:
        for start in range(done, len(examples), CHUNK):
            some = examples[start : start + CHUNK]
            yield Chunk(len(some), encode(some))

    return cached([key, digest.hexdigest(), len(examples)], chunks, root)


def _write(folder: Path, encode: Encode) -> None:
    """Write an entry beside its folder, from where an earlier try stopped, and move it there."""
    _delete_unused(folder.parent)
    beside = folder.with_name(f".{folder.name}.writing")
    try:
        shutil.rmtree(folder, ignore_errors=True)  # not whole
        beside.mkdir(exist_ok=True)
        writer = _Writer(beside)
        for chunk in encode(writer.records, writer.facts):
            writer.add(chunk)
        writer.finish()
        beside.rename(folder)
    except OSError as error:
        error.filename = error.filename or str(folder)
        raise
    except UserError:
        if not (beside / JOURNAL).exists():  # nothing to go on from
            shutil.rmtree(beside, ignore_errors=True)
        raise


class _Writer:
    """Appends chunks to files; the journal says up to where they are whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held, self.held_bytes, self.unnoted = folder, list[Chunk](), 0, 0
        try:
            journal = json.loads((folder / JOURNAL).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            journal = {"records": 0, "arrays": {}, "facts": {}}
        self.records: int = journal["records"]
        self.arrays: dict[str, tuple[str, list[int]]] = journal["arrays"]
        self.facts: dict[str, int] = journal["facts"]
        for path in folder.glob("*.bin"):
            dtype, shape = self.arrays.get(path.stem, ("u1", [0]))
            os.truncate(path, _n_bytes(dtype, shape))

    def add(self, chunk: Chunk) -> None:
        """Hold a chunk; write all held ones, and note what is written, once they are many."""
        self.held.append(chunk)
        self.held_bytes += sum(array.nbytes for array in chunk.arrays.values())
        if self.held_bytes >= min(HELD, FLUSHED):
            self._append()
        if self.unnoted >= FLUSHED:
            self.flush()

    def flush(self) -> None:
        """Write what is held, see all that is written to the disk, and note it in the journal."""
        self._append()
        for name in self.arrays:
            with (self.folder / f"{name}.bin").open("ab") as file:
                os.fsync(file.fileno())
        self.unnoted = 0
        journal = {"records": self.records, "arrays": self.arrays, "facts": self.facts}
        write_json(self.folder / JOURNAL, journal)

    def _append(self) -> None:
        for chunk in self.held:
            self.records += chunk.n_records
            for name, array in chunk.arrays.items():
                _, shape = self.arrays.setdefault(name, (array.dtype.str, [0, *array.shape[1:]]))
                shape[0] += len(array)
            for name, value in chunk.facts.items():
                self.facts[name] = self.facts.get(name, 0) + value
        for name in self.arrays:
            with (self.folder / f"{name}.bin").open("ab") as file:
                for chunk in self.held:
                    file.write(np.ascontiguousarray(chunk.arrays[name]).tobytes())
        self.unnoted += self.held_bytes
        self.held, self.held_bytes = [], 0

    def finish(self) -> None:
        """Write what is left, and the index, which makes the entry whole."""
        self.flush()
        digest, blocks = (
            hashlib.blake2b(digest_size=16),
            {name: list[int]() for name in self.arrays},
        )
        for name in sorted(self.arrays):
            with (self.folder / f"{name}.bin").open("rb") as file:
                while block := file.read(BLOCK):
                    digest.update(block)
                    blocks[name].append(zlib.crc32(block))
        index = {"arrays": self.arrays, "facts": self.facts, "digest": digest.hexdigest()}
        index |= {"blocks": blocks}
        write_json(self.folder / INDEX, {**index, CHECKSUM: _checksum(index)})
        (self.folder / JOURNAL).unlink()


def _open(folder: Path) -> Shards | None:
    """Open an entry; None where there is none or it is not whole."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        with suppress(OSError):  # where the cache can only be read
            path.touch()  # it is used
        blocks = {
            name: _Blocks(folder / f"{name}.bin", checksums)
            for name, checksums in index["blocks"].items()
        }
        if damage := _damage(path, index, blocks):
            warnings.warn(f"{damage}; the data is encoded again", stacklevel=3)
            return None
        return Shards(index, blocks)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _damage(path: Path, index: dict[str, Any], blocks: Mapping[str, _Blocks]) -> str:
    """Say which file differs from its size or checksum; a large entry's arrays are not read."""
    if index.pop(CHECKSUM) != _checksum(index):
        return f"{path} differs from its checksum"
    sizes = {name: _n_bytes(*array) for name, array in index["arrays"].items()}
    for name, n_bytes in sizes.items():
        path = blocks[name].path
        size = path.stat().st_size if path.exists() else 0
        if size != n_bytes:
            return f"{path} has {size:,} bytes but should have {n_bytes:,}"
        if sum(sizes.values()) <= CHECKED_WHOLE and not blocks[name].are_whole(0, n_bytes):
            return f"{path} differs from its checksum"
    return ""


def _checksum(index: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(index, sort_keys=True).encode()):08x}"


def _mapped(path: Path, dtype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    if not _n_bytes(dtype, shape):  # an empty file cannot be mapped
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(path, dtype, "r", shape=tuple(shape)))


def _n_bytes(dtype: str, shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _delete_unused(root: Path) -> None:
    """Delete entries, whole or not, that were not used for UNUSED_DAYS."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for folder in [path for path in root.iterdir() if path.is_dir()]:
        files = [folder / INDEX, folder / JOURNAL]
        times = [file.stat().st_mtime for file in files if file.exists()]
        if times and max(times) < oldest:
            shutil.rmtree(folder, ignore_errors=True)
            (root / f".{folder.name.lstrip('.').removesuffix('.writing')}.lock").unlink(True)
