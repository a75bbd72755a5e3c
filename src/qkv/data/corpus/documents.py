"""Documents from files, a piece at a time: no text is ever in memory as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from qkv.data.files import Paths, Progress, check_seekable, chunks, kind_of, listed, text_files
from qkv.data.formats.labelled import text_columns
from qkv.data.formats.records import TABLES, Field, Record, quoted, read_records
from qkv.errors import UserError
from qkv.text.record_template import fill, names

Unit = Literal["file", "paragraph", "line"]
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

BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")
SEPARATORS = {"file": None, "paragraph": re.compile(r"\n(?:[^\S\n]*\n)+"), "line": re.compile("\n")}


class Piece(NamedTuple):
    """A document, or a part of a long one; the parts come in order, one after the other."""

    text: str
    starts: bool
    ends: bool


def read_documents(
    paths: Paths,
    text_field: Sequence[Field] = (),
    template: str = "",
    documents: Unit = "file",
    progress: Progress | None = None,
) -> Iterator[Piece]:
    """Yield the documents of files, folders and patterns, long ones in pieces.

    A record of a table, JSON or Parquet is a document: its `text_field`, or the `template` filled
    in. Other files are plain text, in which `documents` says what a document is. `progress` is
    called with each further number of bytes that is read.
    """
    is_empty = True
    for path in text_files(paths):
        check_seekable(path)
        if kind_of(path) in TABLES:
            records = read_records(path, [*text_field, *names(template)], progress)
            texts = _texts(records, text_field, template)
            pieces: Iterator[Piece] = chain.from_iterable(
                _in_pieces(text) for text in texts if text.strip()
            )
        else:
            pieces = documents_in(chunks(path, progress), documents)
        for piece in pieces:
            is_empty = False
            yield piece
    if is_empty:
        files = ", ".join(map(str, listed(paths)))
        raise UserError(f"There is no text in {files}; give files with at least one document.")


def _texts(records: Iterable[Record], text_field: Sequence[Field], template: str) -> Iterator[str]:
    """Yield the text of each record; where no field is named, the first record has it."""
    fields = text_field
    for record in records:
        if template:
            yield fill(template, record, record.where)
            continue
        fields = fields or text_columns(record)
        if len(fields) != 1:
            raise UserError(
                f"{record.where}: a document is in one field, but there are {quoted(fields)}; name "
                f"one as text_field under [data], or join them by a template."
            )
        yield record.text(fields[0], "text_field")


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
            if document.strip() or not starts:
                yield from _in_pieces(document, starts, size)
            starts = True
        *parts, held = cut(held, size)
        for part in parts:
            yield Piece(part, starts, False)
            starts = False
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
    for end in (least + size, least + 3 * size):
        if len(text) < end:
            return None
        for pattern in SAFE_CUTS:
            if match := pattern.search(text, least, end):
                return match.start()
    for pattern in LAST_RESORTS:
        if match := pattern.search(text, least, end):
            return match.start()
    return end
