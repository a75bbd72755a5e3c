"""Texts with labels from records: classes, several classes at once, or numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from qkv.data.files import Paths, text_files
from qkv.data.formats.records import IDS, Field, Record, as_text, quoted, read_records
from qkv.errors import UserError, shown

Texts = tuple[str, ...]
Label = str | tuple[str, ...] | float | None  # none: a teacher must say what the text is
Kind = Literal["class", "classes", "number"]


@dataclass(frozen=True)
class Labelled:
    """A text, or a pair, and its class, its classes or its number."""

    texts: Texts
    label: Label


def read_labelled(
    paths: Paths,
    kind: Kind = "class",
    label_field: Field = "label",
    text_field: Sequence[Field] = (),
) -> list[Labelled]:
    """Read labelled texts, whose columns are as `read_texts` finds them.

    Several classes are a JSON list, or parted by "|".
    """
    return [
        Labelled(texts, _label(record, label_field, kind))
        for texts, record in _read(paths, text_field, label_field, blank=False)
    ]


def read_texts(
    paths: Paths,
    text_field: Sequence[Field] = (),
    label_field: Field = "label",
    blank: bool = False,
) -> list[Texts]:
    """Read texts, or pairs, that need no label.

    They are in one or two columns, `text_field`, or else in the column "text", or in all that hold
    neither the label nor an id. Records without text are a mistake, unless they may be `blank`.
    """
    return [texts for texts, _ in _read(paths, text_field, label_field, blank)]


def _read(
    paths: Paths, text_field: Sequence[Field], label_field: Field, blank: bool
) -> Iterator[tuple[Texts, Record]]:
    width = 0
    for path in text_files(paths):
        records = read_records(path, [label_field, *text_field])
        first = next(records)
        fields = text_field or text_columns(first, label_field)
        if not 1 <= len(fields) <= 2:
            if first.layout == "no header":
                first.value(label_field, "label_field")  # else an unknown header is the mistake
            raise UserError(
                f"{first.where}: beside the label there must be one text, or a pair, but there "
                f"{'are' if fields else 'is'} {quoted(fields)}; name one or two as text_field "
                f"under [data]."
            )
        width = width or len(fields)
        if len(fields) != width:
            raise UserError(
                f"{path}: each record has {len(fields)} texts, but {width} in the file before; "
                f"name those that all files have as text_field under [data]."
            )
        for record in chain([first], records):
            texts = tuple(record.text(field, "text_field") for field in fields)
            if not blank and not any(texts):
                raise UserError(
                    f"{record.where}: there is no text in {' or '.join(map(repr, fields))}; "
                    f"correct or delete the record."
                )
            yield texts, record


def text_columns(record: Record, label_field: Field = "label") -> Sequence[Field]:
    """Return the columns of text where none are named: "text", or all but the label and ids."""
    if "text" in record:
        return ["text"]
    label = record.column(label_field).partition(".")[0]
    return [name for name in record if name != label and name.lower() not in IDS]


def _label(record: Record, field: Field, kind: Kind) -> Label:
    value = record.value(field, "label_field")
    if kind == "number":
        return _number(value, field, record.where)
    if kind == "class":
        if isinstance(value, list):
            raise UserError(
                f"{record.where}: the label {field!r} holds {shown(value)}, but must be one class; "
                f'set kind = "classes" under [classify], where a text may have several.'
            )
        return _class(value, field, record.where)
    if isinstance(value, str):
        value = [part for part in value.split("|") if part.strip()]
    items = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(_class(item, field, record.where) for item in items))


def _class(value: object, field: Field, where: str) -> str:
    """Return the name of a class, which JSON may give as a number."""
    if isinstance(value, bool | int | float):
        value = json.dumps(value)
    name = as_text(value, field, where, "label_field").strip()
    if not name:
        raise UserError(f"{where}: the label {field!r} is empty; add it, or delete the record.")
    return name


def _number(value: object, field: Field, where: str) -> float:
    number = math.nan
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise UserError(
            f"{where}: the label {field!r} holds {shown(value)}, but must be a number; correct it, "
            f"or set kind under [classify]."
        )
    return number
