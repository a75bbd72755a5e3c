"""Files of text: finding them, opening them compressed or not, decoding them as a stream."""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from qkv.errors import UserError, missing_package
from qkv.files import reading

Paths = str | Path | Sequence[str | Path]
Progress = Callable[[int], object]
COMPRESSED = (".gz", ".xz", ".zst")
IN_FOLDERS = (".txt", ".jsonl", ".parquet", *COMPRESSED)
CHUNK = 1 << 16  # bytes read at a time
MOST_EXPANDED = 1 << 24  # bytes that any compressed file may hold
MOST_RATIO = 250  # times its size, which a larger one may hold; text of people has 10 or less


def listed(paths: Paths) -> list[Path]:
    """Return the paths that a setting names, one or many."""
    # A lone name is a sequence too, of characters; it is meant as one file.
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    if "" in names:  # which Path takes for the current folder
        raise UserError("The name of a file is empty; write it, or leave the setting out.")
    return [Path(name) for name in names]


def text_files(paths: Paths) -> list[Path]:
    """Return the files that paths, patterns and folders stand for, in each folder by name."""
    return [file for path in listed(paths) for file in _matching(path)]


def _matching(path: Path) -> list[Path]:
    if path.is_dir():
        names = _glob(f"{glob.escape(str(path))}/**")
        if files := [file for file in names if file.suffix in IN_FOLDERS and file.is_file()]:
            return files
        raise UserError(
            f"There is no {', '.join(IN_FOLDERS)} file in {path}; name files of another kind "
            f"themselves, or with a pattern like '{path}/*.md'."
        )
    if path.exists():
        return [path]
    if matches := _glob(str(path)):
        return [file for match in matches for file in _matching(match)]
    raise UserError(f"There is no file {path}; check the path.")


def _glob(pattern: str) -> list[Path]:
    # Unlike Path's, this one leaves hidden files out.
    names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    return [Path(name) for name in names if Path(name).exists()]


def kind_of(path: Path) -> str:
    """Return what a file holds by its name, like ".tsv", whether it is compressed or not."""
    path = Path(path.name.lower())  # some systems write .CSV
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def check_seekable(path: Path) -> None:
    """Refuse a pipe or a device where a file is read more than once, or not from its beginning."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(
            f"{path} is a pipe or a device, which can be read only once; write it to a file first."
        )


def read_lines(path: Path) -> list[str]:
    """Read all lines of a UTF-8 file, as `lines` yields them."""
    return list(lines(path))


def lines(path: Path, progress: Progress | None = None) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file, decompressed by its name, ended by \n or \r\n alone."""
    with opened(path, progress) as file:
        yield from lines_in(file, str(path))


def chunks(path: Path, progress: Progress | None = None) -> Iterator[str]:
    r"""Yield the text of a UTF-8 file piece by piece, decompressed by its name; \r\n becomes \n."""
    with opened(path, progress) as file:
        yield from chunks_in(file, str(path))


def lines_in(file: BinaryIO, name: str, line: int = 1) -> Iterator[str]:
    """Yield the lines of an open file as soon as they are read; errors call it `name`.

    `line` is the number of the first one, where the file is a part of another.

    `str.splitlines` would also cut at U+2028, U+0085 and others that occur inside of sentences, and
    the lines after that would no longer be each other's translations.
    """
    return _split(chunks_in(file, name, line))


def _split(texts: Iterable[str]) -> Iterator[str]:
    begun: list[str] = []
    for text in texts:
        *ended, rest = text.split("\n")
        if ended:
            ended[0] = "".join([*begun, ended[0]])
            begun.clear()
        yield from ended
        begun.append(rest)
    if last := "".join(begun):
        yield last


def chunks_in(file: BinaryIO, name: str, line: int = 1) -> Iterator[str]:
    r"""Yield the text of an open file as soon as it is read; \r\n becomes \n, and a BOM goes."""
    # `read1` returns what a pipe or a terminal has so far, and does not wait for a full chunk.
    read = getattr(file, "read1", file.read)
    held, byte = b"", 1
    chunk = None
    while chunk != b"":
        chunk = read(CHUNK)
        held += chunk
        if (line, byte) == (1, 1):
            held = held.removeprefix(codecs.BOM_UTF8)
        # The line feed after a final \r may come with the next chunk.
        end = len(held) - (chunk != b"" and held.endswith(b"\r"))
        try:
            text, end = codecs.utf_8_decode(held[:end], "strict", chunk == b"")
        except UnicodeDecodeError as error:
            whole = held.rfind(b"\n", 0, error.start) + 1
            yield held[:whole].decode().replace("\r\n", "\n")  # the lines before it are sound
            line, byte = _after(line, byte, held[: error.start])
            is_utf16 = (line, byte) == (1, 1) and held[0] in codecs.BOM_UTF16
            if b"\0" in held and not is_utf16:
                raise UserError(
                    f"{name} holds no text, but bytes that no text has; export it as UTF-8 text "
                    f"first, a spreadsheet as .csv."
                ) from error
            encoding = "UTF-16" if is_utf16 else "ENCODING"
            often = "" if is_utf16 else " (often GB18030, or CP1252)"
            raise UserError(
                f"{name}, line {line}: byte {byte} of the line (0x{held[error.start]:02x}) is not "
                f"UTF-8; convert it first, with `iconv -f {encoding} -t UTF-8`{often}."
            ) from error
        line, byte = _after(line, byte, held[:end])
        held = held[end:]
        yield text.replace("\r\n", "\n")


def _after(line: int, byte: int, content: bytes) -> tuple[int, int]:
    """Return the line, and the byte of it, that follow `content` if that begins at these."""
    end = content.rfind(b"\n")
    if end < 0:
        return line, byte + len(content)
    return line + content.count(b"\n"), len(content) - end


class _Counting(io.FileIO):
    """A file, or a range of its bytes, that reports how many bytes are read from it."""

    def __init__(self, path: Path, progress: Progress | None, start: int, end: int | None) -> None:
        super().__init__(path)
        self._progress = progress or (lambda n_bytes: None)
        self._left: float = math.inf if end is None else end - start
        if start:
            self.seek(start)

    def readinto(self, buffer: Any) -> int | None:
        view = memoryview(buffer).cast("B")
        n_bytes = super().readinto(view[: int(min(len(view), self._left))])
        self._left -= n_bytes or 0
        self._progress(n_bytes or 0)
        return n_bytes


class _Expanded(io.BufferedIOBase):
    """What a compressed file holds; refused where no text compresses so well."""

    def __init__(self, file: Any, path: Path) -> None:
        self._file, self._path = file, path
        self._most = max(MOST_EXPANDED, MOST_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position, which may decompress all before it."""
        position = int(self._file.seek(offset, whence))
        self._check()
        return position

    def read(self, size: int | None = -1) -> bytes:
        """Read up to so many bytes; none at the end."""
        whole = size is None or size < 0
        content = self._file.read(self._most + 1 - self.tell() if whole else size)
        self._check()
        return bytes(content)

    def read1(self, size: int = -1) -> bytes:
        """Read what is there, up to so many bytes; none at the end."""
        content = self._file.read1(size)
        self._check()
        return bytes(content)

    def _check(self) -> None:
        if self.tell() > self._most:
            raise UserError(
                f"{self._path} expands to more than {MOST_RATIO} times its size, as no text does; "
                f"decompress it first if it is meant to."
            )


@contextmanager
def opened(
    path: Path, progress: Progress | None = None, start: int = 0, end: int | None = None
) -> Iterator[BinaryIO]:
    """Open a file, decompressed by its name; errors in the block say what is wrong with it.

    `progress` is called with each further number of bytes that is read, compressed as they are. Of
    a file that is not compressed, the bytes from `start` to `end` may be read alone.
    """
    damage = [gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError]
    suffix = path.suffix.lower()
    with reading(path):
        try:
            with io.BufferedReader(_Counting(path, progress, start, end)) as raw:
                if suffix == ".zst":
                    zstd = _zstd(path)
                    damage.append(zstd.ZstdError)
                    yield cast(BinaryIO, _Expanded(zstd.open(raw), path))
                else:
                    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
                    file = _Expanded(openers[suffix](raw), path) if suffix in openers else raw
                    yield cast(BinaryIO, file)
        except tuple(damage) as error:
            raise UserError(
                f"{path} is truncated or damaged, or no {suffix} file at all; fetch it again, or "
                f"rename it if it is plain text."
            ) from error
        except MemoryError as error:
            if suffix not in COMPRESSED:
                raise
            raise UserError(
                f"{path} takes more memory to decompress than there is; fetch it again, or "
                f"decompress it on another machine."
            ) from error


def _zstd(path: Path) -> Any:
    # Not `zstandard`, which takes a truncated file for a whole one.
    for name in ("compression.zstd", "backports.zstd", "pyzstd"):
        with suppress(ImportError):
            return import_module(name)
    raise missing_package(f"Reading {path}", "backports.zstd", "zst")
