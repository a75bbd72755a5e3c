"""Documents from files, a piece at a time: no text is ever in memory as a whole."""

from __future__ import annotations

import codecs
import glob
import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from qkv.config import DataConfig
from qkv.data.readers import (
    Paths,
    explained,
    holds_objects,
    holds_table,
    listed,
    not_utf8,
    parse_object,
    passed,
    string_field,
)
from qkv.errors import UserError
from qkv.text.record_template import fill

IN_FOLDERS = (".txt", ".jsonl", ".gz")
CHUNK = 1 << 16  # bytes read at a time
PIECE = 1 << 13  # characters; larger ones are not encoded quicker, and take more memory
SAMPLED = 1 << 12  # characters of a text for a tokenizer to learn from

# Where a text may be cut so that the parts' tokens are the whole's: none of our runs of characters
# (`RUNS` in qkv.text.training) reaches across, and what follows gets no space before it. The first
# is safe with other people's tokenizers too, some of which keep a line's end with a full stop.
SAFE_CUTS = (
    re.compile(r"(?<=[^\W_])\n"),
    re.compile(r"(?<=\S)\n"),
    re.compile(r"(?<=[^\W_])[,.;:!?、。，；：！？]"),
)
# Where nothing safe comes for long, one token may differ; the end of a paragraph stays whole.
LAST_RESORTS = re.compile(r"(?<=\S) (?=\S)"), re.compile(r"(?<=\S)")

BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")
SEPARATORS = {"file": None, "paragraph": re.compile(r"\n(?:[^\S\n]*\n)+"), "line": re.compile("\n")}


class Piece(NamedTuple):
    """A document, or a part of a long one; the parts come in order, one after the other."""

    text: str
    starts: bool
    ends: bool


Told = Callable[[int], object]


def read_documents(paths: Paths, config: DataConfig, told: Told | None = None) -> Iterator[Piece]:
    """Read documents; `told` hears of each further count of bytes that is read from the files."""
    nothing = True
    for path in text_files(paths):
        chunks = _unix_lines(_decoded(_chunks(path, told), str(path)))
        if holds_objects(path):
            pieces = _from_objects(chunks, path, config)
        elif holds_table(path):
            pieces = _from_table(chunks, path, config)
        else:
            pieces = _from_text(chunks, config.documents)
        for piece in pieces:
            nothing = False
            yield piece
    if nothing:
        names = ", ".join(map(str, listed(paths)))
        raise UserError(f"There is no text in {names}; give files with at least one document.")


def sample_text(paths: Paths, config: DataConfig, most_characters: int) -> Iterator[str]:
    """Texts from all over the files, `most_characters` together, for a tokenizer to learn from."""
    total = sum(path.stat().st_size for path in text_files(paths))
    size = max(1, min(SAMPLED, most_characters // 64))
    read = taken = 0

    def told(n_bytes: int) -> None:
        nonlocal read
        read += n_bytes

    for piece in read_documents(paths, config, told):
        for text in cut(piece.text, size):
            # What is taken never runs ahead of what is read, so that the last file has its share.
            if taken + len(text) <= most_characters * read / total:
                taken += len(text)
                yield text


def text_files(paths: Paths) -> list[Path]:
    """The files that paths, folders and patterns stand for; those of a folder by their names."""
    return [file for path in listed(paths) for file in _matching(path)]


def _matching(path: Path) -> list[Path]:
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [path]
    found = [Path(name) for name in sorted(_glob(str(path)))]
    if not found:
        raise UserError(f"There is no file {path}; check the path.")
    return [file for place in found for file in _matching(place)]


def _in_folder(folder: Path) -> list[Path]:
    found = [Path(name) for name in sorted(_glob(f"{glob.escape(str(folder))}/**"))]
    files = [path for path in found if path.suffix in IN_FOLDERS and path.is_file()]
    if not files:
        raise UserError(
            f"There is no {', '.join(IN_FOLDERS)} file in {folder}; name files of another kind "
            f"themselves, or with a pattern like '{folder}/*.md'."
        )
    return files


def _glob(pattern: str) -> list[str]:
    # Unlike Path's, this one leaves hidden files out.
    return [name for name in glob.glob(pattern, recursive=True) if Path(name).exists()]  # noqa: PTH207


def _chunks(path: Path, told: Told | None) -> Iterator[bytes]:
    """Bytes of a file, decompressed where its name ends in .gz."""
    with explained(path), path.open("rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        before = 0
        while chunk := file.read(CHUNK):
            if told:
                told(raw.tell() - before)
                before = raw.tell()
            yield chunk


def _decoded(chunks: Iterable[bytes], name: str) -> Iterator[str]:
    place = 1, 1
    held = b""
    for chunk in chain(chunks, [b""]):
        held += chunk
        if place == (1, 1):
            held = held.removeprefix(codecs.BOM_UTF8)
        try:
            text, n_bytes = codecs.utf_8_decode(held, "strict", not chunk)
        except UnicodeDecodeError as error:
            place = passed(place, held[: error.start])
            raise not_utf8(name, place, held[error.start]) from error
        place = passed(place, held[:n_bytes])
        held = held[n_bytes:]
        yield text


def _unix_lines(chunks: Iterable[str]) -> Iterator[str]:
    held = ""
    for chunk in chunks:
        text = held + chunk
        held = "\r" if text.endswith("\r") else ""  # its line feed may be in the next chunk
        yield text.removesuffix(held).replace("\r\n", "\n")
    yield held


def _from_objects(chunks: Iterable[str], path: Path, config: DataConfig) -> Iterator[Piece]:
    for number, line in enumerate(_lines(chunks), 1):
        if line.strip():
            where = f"{path}, line {number}"
            record = parse_object(line, where, f'{{"{config.text_field}": "…"}}')
            yield from _from_record(record, where, config)


def _from_table(chunks: Iterable[str], path: Path, config: DataConfig) -> Iterator[Piece]:
    """The rows of a .tsv file whose first line names the columns."""
    lines = enumerate(_lines(chunks), 1)
    columns = next(lines)[1].split("\t")
    for number, line in lines:
        if line.strip():
            record: dict[str, object] = dict(zip(columns, line.split("\t"), strict=False))
            yield from _from_record(record, f"{path}, line {number}", config)


def _from_record(record: dict[str, object], where: str, config: DataConfig) -> Iterator[Piece]:
    if config.template:
        text = fill(config.template, record, where)
    else:
        text = string_field(record, config.text_field, "text_field", where)
    if text.strip():
        yield from _in_pieces(text)


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    begun: list[str] = []
    for chunk in chunks:
        *ended, rest = chunk.split("\n")
        if ended:
            ended[0] = "".join([*begun, ended[0]])
            begun.clear()
        yield from ended
        begun.append(rest)
    yield "".join(begun)


def _from_text(chunks: Iterable[str], kind: str) -> Iterator[Piece]:
    separator = SEPARATORS[kind]
    held, starts = "", True
    for chunk in chain(chunks, ["\n\n" if kind == "paragraph" else ""]):
        held += chunk
        if starts and kind == "paragraph" and (blank := BLANK_LINES.match(held)):
            held = held[blank.end() :]
        *ended, held = separator.split(held) if separator else [held]
        for text in ended:
            if text.strip() or not starts:
                yield from _in_pieces(text, starts)
            starts = True
        *parts, held = cut(held)
        for text in parts:
            yield Piece(text, starts, False)
            starts = False
    if held.strip() or not starts:
        yield Piece(held, starts, True)


def _in_pieces(text: str, starts: bool = True) -> Iterator[Piece]:
    *parts, rest = cut(text)
    for part in parts:
        yield Piece(part, starts, False)
        starts = False
    yield Piece(rest, starts, True)


def cut(text: str, size: int = PIECE) -> list[str]:
    """Cut a text into parts of `size` to four times as many characters, and a rest."""
    parts: list[str] = []
    start = 0
    while place := _place_to_cut(text, start + size, size):
        parts.append(text[start:place])
        start = place
    return [*parts, text[start:]]


def _place_to_cut(text: str, least: int, size: int) -> int | None:
    """The best place from `least` on; None while a better one may yet come."""
    for end in (least + size, least + 3 * size):
        if len(text) < end:
            return None
        for pattern in SAFE_CUTS:
            if found := pattern.search(text, least, end):
                return found.start()
    for pattern in LAST_RESORTS:
        if found := pattern.search(text, least, end):
            return found.start()
    return end
