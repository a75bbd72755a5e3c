"""Documents from files, a piece at a time: no text is ever in memory as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from qkv.config import DataConfig
from qkv.data.files import (
    COMPRESSED,
    Paths,
    Progress,
    check_seekable,
    chunks,
    chunks_in,
    kind_of,
    lines_in,
    listed,
    opened,
    text_files,
)
from qkv.data.formats.labelled import text_columns
from qkv.data.formats.records import TABLES, Field, Record, json_lines, quoted, read_records
from qkv.errors import UserError
from qkv.text.record_template import fill, names

Unit = Literal["file", "paragraph", "line"]
AS_USUAL = DataConfig()
PIECE = 1 << 13  # characters; larger ones are not encoded quicker, and take more memory

# Where a text may be cut so that the parts' tokens are the whole's: none of our runs of characters
# (see `qkv.text.training`) reaches across, and the next part gets no space before it. The first is
# safe with other people's tokenizers too, some of which keep a line's end with a full stop.
SAFE_CUTS = (
    re.compile(r"(?<=[^\W_])\n"),
    re.compile(r"(?<=\S)\n"),
    re.compile(r"(?<=[^\W_])[,.;:!?、。，；：！？]"),
)
# Where nothing safe comes for long, one token may differ; the end of a paragraph stays whole.
LAST_RESORTS = re.compile(r"(?<=\S) (?=\S)"), re.compile(r"(?<=\S)")

SPAN = 1 << 20  # bytes of text that are encoded in one go
LONGEST = 1 << 26  # bytes; where a document is longer, the rest of its file is read as a stream
BLOCK = 1 << 12  # bytes searched at first for the end of a document
BETWEEN = {"line": re.compile(rb"\n"), "paragraph": re.compile(rb"\n\r?\n")}

BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")
SEPARATORS = {"file": None, "paragraph": re.compile(r"\n(?:[^\S\n]*\n)+"), "line": re.compile("\n")}


class Piece(NamedTuple):
    """A document, or a part of a long one; the parts come in order, one after the other."""

    text: str
    starts: bool
    ends: bool


def read_documents(
    paths: Paths, config: DataConfig = AS_USUAL, progress: Progress | None = None
) -> Iterator[Piece]:
    """Yield the documents of files, folders and patterns, long ones in pieces.

    A record of a table, JSON or Parquet is a document: its `text_field`, or the `template` filled
    in. Other files are plain text, in which `documents` says what a document is. `progress` is
    called with each further number of bytes that is read.
    """
    is_empty = True
    for path in text_files(paths):
        for piece in _read_file(path, config, progress):
            is_empty = False
            yield piece
    if is_empty:
        files = ", ".join(map(str, listed(paths)))
        raise UserError(f"There is no text in {files}; give files with at least one document.")


def whole_documents(paths: Paths, config: DataConfig = AS_USUAL) -> list[str]:
    """Read the documents of files, folders and patterns into memory."""
    documents: list[list[str]] = []
    for piece in read_documents(paths, config):
        if piece.starts:
            documents.append([])
        documents[-1].append(piece.text)
    return ["".join(parts) for parts in documents]


def _read_file(path: Path, config: DataConfig, progress: Progress | None) -> Iterator[Piece]:
    check_seekable(path)
    if kind_of(path) not in TABLES:
        return documents_in(chunks(path, progress), config.documents)
    fields = [*config.text_field, *names(config.template)]
    return _record_pieces(read_records(path, fields, progress), config)


class Span(NamedTuple):
    """A range of a file's bytes between documents; without an end, the rest of the file."""

    path: Path
    start: int
    end: int | None


def spans(path: Path, documents: Unit) -> Iterator[Span]:
    """Divide a file into spans of about SPAN bytes; equal calls give equal spans.

    A file that can only be read from its beginning is one span, and so is all that follows the
    beginning of a very long document; these have no end.
    """
    check_seekable(path)
    separator = _separator(path, documents)
    if separator is None:
        yield Span(path, 0, None)
        return
    size, start = path.stat().st_size, 0
    with opened(path) as file:
        while size - start > SPAN:
            file.seek(start + SPAN)
            read = b""
            while not (match := separator.search(read)) and len(read) < LONGEST:
                block = file.read(max(BLOCK, len(read)))
                if not block:
                    yield Span(path, start, size)
                    return
                read += block
            if not match:
                break
            end = start + SPAN + match.end()
            yield Span(path, start, end)
            start = end
    if start < size or not size:
        yield Span(path, start, size if size - start <= SPAN else None)


def _separator(path: Path, documents: Unit) -> re.Pattern[bytes] | None:
    """Return what stands between documents in a file's bytes; None where nothing safe does."""
    if path.suffix.lower() in COMPRESSED:
        return None
    kind = kind_of(path)
    if kind in TABLES:
        return BETWEEN["line"] if kind == ".jsonl" else None
    return BETWEEN.get(documents)


def read_span(
    span: Span, config: DataConfig, progress: Progress | None = None, line: int = 0
) -> Iterator[Piece]:
    """Yield the documents of a span as `read_documents` does those of a file.

    `line` is the number of its first line, for messages; 0 where it is not known.
    """
    path, start, end = span
    if not start and end is None:
        yield from _read_file(path, config, progress)
        return
    line = line or (2 if start else 1)  # a BOM is in the first line alone
    with opened(path, progress, start, end) as file:
        if kind_of(path) != ".jsonl":
            yield from documents_in(chunks_in(file, str(path), line), config.documents)
            return
        if not config.text_field and not config.template:
            config = replace(config, text_field=tuple(text_columns(next(read_records(path)))))
        records = json_lines(lines_in(file, str(path), line), path, line)
        yield from _record_pieces(records, config)


def _record_pieces(records: Iterable[Record], config: DataConfig) -> Iterator[Piece]:
    """Yield the text of each record in pieces; where no field is named, the first record has it."""
    fields: Sequence[Field] = config.text_field
    for record in records:
        if config.template:
            text = fill(config.template, record, record.where)
        else:
            fields = fields or text_columns(record)
            if len(fields) != 1:
                raise UserError(
                    f"{record.where}: a document is in one field, but there are {quoted(fields)}; "
                    f"name one as text_field under [data], or join them by a template."
                )
            if isinstance(record.value(fields[0], "text_field"), list):
                raise UserError(
                    f"{record.where}: field {fields[0]!r} holds a list; join its strings by a "
                    f"template under [data], like template = '{{{fields[0]}}}'."
                )
            text = record.text(fields[0], "text_field")
        if text.strip():
            yield from _in_pieces(text)


def documents_in(texts: Iterable[str], documents: Unit, size: int = PIECE) -> Iterator[Piece]:
    """Yield the documents of plain text that comes in chunks, in pieces of about `size`."""
    separator = SEPARATORS[documents]
    held, starts = "", True
    for text in chain(texts, ["\n\n" if documents == "paragraph" else ""]):
        held += text
        if starts and documents == "paragraph" and (blank := BLANK_LINES.match(held)):
            held = held[blank.end() :]
        *ended, held = separator.split(held) if separator else [held]
        for document in ended:
            if len(document) <= size and (document.strip() or not starts):
                yield Piece(document, starts, True)
            elif document.strip() or not starts:
                yield from _in_pieces(document, starts, size)
            starts = True
        *parts, (held, starts, _) = _in_pieces(held, starts, size)
        yield from parts
    if held.strip() or not starts:
        yield Piece(held, starts, True)


def _in_pieces(text: str, starts: bool = True, size: int = PIECE) -> Iterator[Piece]:
    *parts, rest = cut(text, size)
    for part in parts:
        yield Piece(part, starts, False)
        starts = False
    yield Piece(rest, starts, True)


def cut(text: str, size: int = PIECE) -> list[str]:
    """Cut a text into parts of `size` to four times as many characters, and a rest."""
    parts: list[str] = []
    start = 0
    while end := _find_cut(text, start + size, size):
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def _find_cut(text: str, least: int, size: int) -> int | None:
    """Return the best position from `least` on; None while a better one may yet come."""
    start = least
    for end in (least + size, least + 3 * size):
        if len(text) < end:
            return None
        # Most texts without an end of line are quickly seen to have none.
        for pattern in SAFE_CUTS if text.find("\n", start, end) >= 0 else SAFE_CUTS[2:]:
            if match := pattern.search(text, start, end):
                return match.start()
        start = end
    for pattern in LAST_RESORTS:
        if match := pattern.search(text, least, end):
            return match.start()
    return end
