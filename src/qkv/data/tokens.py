"""A text as one long stream of token ids, on disk or in memory, read where it is wanted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.data.batch import Specials
from qkv.data.corpus.documents import Piece
from qkv.data.encoded import Indices, Ragged
from qkv.errors import UserError

SHARD = 1 << 26  # tokens in a file
HELD = 1 << 14  # tokens that wait to be written together
MARKS = 1 << 12  # places of a stream of which the bytes before them are kept, at most


@dataclass(frozen=True, eq=False)
class Tokens:
    """A range of a stream of documents, each laid down as BOS (if `bos`), its text, EOS.

    Places count from the range's own beginning, which may lie within a document.
    """

    parts: tuple[npt.NDArray[Any], ...]
    """The stream's ids, in arrays of one length; the last may be shorter."""
    documents: Indices
    """Where each document of the stream begins."""
    bos: bool
    n_bytes: int
    """UTF-8 bytes of the range's text."""
    begin: int
    end: int
    digest: str = ""
    """Of the whole stream, where it was written to files: another text has another."""

    @classmethod
    def of(
        cls,
        documents: Sequence[Sequence[int]],
        special: Specials,
        bos: bool = True,
        n_bytes: int = 0,
    ) -> Tokens:
        """Lay documents down in memory."""
        start = [special.bos] if bos else []
        laid = Ragged.of([[*start, *ids, special.eos] for ids in documents])
        return cls(
            parts=(laid.tokens,),
            documents=laid.offsets[:-1],
            bos=bos,
            n_bytes=n_bytes,
            begin=0,
            end=len(laid.tokens),
        )

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def n_documents(self) -> int:
        """Documents of which at least a part lies in the range."""
        first, last = self._numbers(0, len(self))
        begun_before = len(self) > 0 and not len(self.starts(0, 1))
        return last - first + begun_before

    def read(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Copy out `count` ids from place `start` on."""
        if not 0 <= start <= start + count <= len(self):
            raise IndexError(f"{count} tokens from {start} on of {len(self)}")
        ids = np.empty(count, np.int64)
        done = 0
        while done < count:
            number, place = divmod(self.begin + start + done, len(self.parts[0]))
            found = self.parts[number][place : place + count - done]
            ids[done : done + len(found)] = found
            done += len(found)
        return ids

    def gather(self, places: Indices) -> npt.NDArray[np.int64]:
        """Copy out the ids at any places, all in one go."""
        if len(places) and not 0 <= places.min() <= places.max() < len(self):
            raise IndexError(f"places {places.min()} to {places.max()} of {len(self)}")
        number, place = np.divmod(self.begin + places, len(self.parts[0]))
        ids = np.empty(len(places), np.int64)
        for part in np.unique(number):
            here = number == part
            ids[here] = self.parts[part][place[here]]
        return ids

    def starts(self, low: int, high: int) -> Indices:
        """The places from `low` up to `high` at which a document begins."""
        first, last = self._numbers(low, high)
        return self.documents[first:last] - self.begin

    def _numbers(self, low: int, high: int) -> tuple[int, int]:
        """Which of the stream's documents begin from `low` up to `high`, as a range of numbers."""
        ends = self.begin + low, self.begin + min(high, len(self))
        first, last = np.searchsorted(self.documents, ends)
        return int(first), int(last)


class TokenWriter:
    """Lays documents down, end to end, in files of bounded size."""

    def __init__(self, folder: Path, name: str, dtype: str, bos: int | None, eos: int) -> None:
        self.folder, self.name, self.dtype = folder, name, dtype
        self.bos, self.eos = bos, eos
        self.n_bytes = self.n_documents = self.written = 0
        self.marks = [(0, 0)]  # tokens and bytes up to the ends of some pieces
        self._ids: list[int] = []  # not written yet
        self._starts: list[int] = []
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def n_tokens(self) -> int:
        """Tokens so far."""
        return self.written + len(self._ids)

    def add(self, piece: Piece, ids: Sequence[int]) -> None:
        """Lay down a piece behind those before it."""
        if piece.starts:
            self._starts.append(self.n_tokens)
            self._ids += [] if self.bos is None else [self.bos]
        self._ids += ids
        self.n_bytes += len(piece.text.encode())
        if piece.ends:
            self._ids.append(self.eos)
            self.n_documents += 1
        if len(self._ids) >= HELD:
            self._write()

    def finish(self) -> dict[str, Any]:
        """Write what is left, see it to the disk, and tell what `open_tokens` must know."""
        self._write()
        for path in self.folder.glob(f"{self.name}*"):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return {
            "tokens": self.n_tokens,
            "documents": self.n_documents,
            "bytes": self.n_bytes,
            "digest": self._digest.hexdigest(),
        }

    def _write(self) -> None:
        ids = np.array(self._ids, self.dtype)
        self._ids.clear()
        self._digest.update(ids.data)
        while len(ids):
            number, used = divmod(self.written, SHARD)
            part, ids = np.split(ids, [SHARD - used])
            _append(_shard(self.folder, self.name, number), part)
            self.written += len(part)
        _append(_starts(self.folder, self.name), np.array(self._starts, "<i8"))
        self._starts.clear()
        self.marks.append((self.written, self.n_bytes))
        if len(self.marks) > MARKS:
            del self.marks[1::2]  # memory must not grow with the text


def open_tokens(folder: Path, name: str, dtype: str, bos: bool, facts: Mapping[str, Any]) -> Tokens:
    """Map what a `TokenWriter` has written into memory, whole files only."""
    n_tokens = facts["tokens"]
    sizes = [min(SHARD, n_tokens - start) for start in range(0, n_tokens, SHARD)]
    return Tokens(
        parts=tuple(
            _mapped(_shard(folder, name, number), dtype, size) for number, size in enumerate(sizes)
        ),
        documents=_mapped(_starts(folder, name), "<i8", facts["documents"]),
        bos=bos,
        n_bytes=facts["bytes"],
        begin=0,
        end=n_tokens,
        digest=facts["digest"],
    )


def _shard(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:05d}.bin"


def _starts(folder: Path, name: str) -> Path:
    return folder / f"{name}-documents.bin"


def _append(path: Path, array: npt.NDArray[Any]) -> None:
    with path.open("ab") as file:
        file.write(array.data)


def _mapped(path: Path, dtype: str, count: int) -> npt.NDArray[Any]:
    expected = count * np.dtype(dtype).itemsize
    size = path.stat().st_size if path.exists() else 0
    if size != expected:
        raise UserError(
            f"{path} has {size:,} bytes but should have {expected:,}; delete the folder "
            f"{path.parent}, and the text is encoded anew."
        )
    return np.asarray(np.memmap(path, dtype, "r", shape=(count,)))
