"""Parts of text files: so many lines each, found by their bytes without reading them as text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkv.data.files import COMPRESSED, check_seekable, lines_in, opened
from qkv.errors import UserError

BLOCK = 1 << 24  # bytes searched for line ends at a time


@dataclass(frozen=True)
class Part:
    """Some lines of a file that are worked on together."""

    number: int
    path: Path
    start: int
    """Byte of the file at which it begins."""
    end: int
    line: int
    """Number of its first line in the file, from 1 on."""
    first: int
    """Lines of all parts before it."""
    n_lines: int

    def read(self) -> list[str]:
        """Read its lines."""
        with opened(self.path) as file:
            file.seek(self.start)
            content = io.BytesIO(file.read(self.end - self.start))
        return list(lines_in(content, str(self.path), self.line))


def cut_into_parts(paths: Sequence[Path], n_lines: int) -> list[Part]:
    """Cut files into parts of `n_lines` lines; the last one of each file may be shorter."""
    parts: list[Part] = []
    first = 0
    for path in paths:
        check_seekable(path)
        if path.suffix.lower() in COMPRESSED:
            raise UserError(
                f"{path} is compressed, so that it cannot be read from the middle; decompress it "
                f"first."
            )
        line = 1
        for start, end, count in _ranges(path, n_lines):
            parts.append(Part(len(parts), path, start, end, line, first, count))
            line, first = line + count, first + count
    return parts


def _ranges(path: Path, n_lines: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first byte, the one after the last, and the lines of each part of a file."""
    start = position = count = 0
    with opened(path) as file:
        while block := file.read(BLOCK):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1 + position
            position += len(block)
            while count + len(ends) >= n_lines:
                end = int(ends[n_lines - count - 1])
                yield start, end, n_lines
                ends = ends[n_lines - count :]
                start, count = end, 0
            count += len(ends)
    if position > start:
        # The last line may lack its end.
        with path.open("rb") as file:
            file.seek(position - 1)
            lacks_end = file.read(1) != b"\n"
        yield start, position, count + lacks_end
