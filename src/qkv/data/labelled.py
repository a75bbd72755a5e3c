"""Texts with labels from tables or JSON: classes, several classes at once, or numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkv.data.readers import Paths, listed, read_lines, string_field
from qkv.data.table import Located, Record, read_located, suffix
from qkv.errors import UserError

Texts = tuple[str, ...]
Label = str | tuple[str, ...] | float | None  # none: a teacher must say what the text is
Kind = Literal["class", "classes", "number"]
TABLES = (".tsv", ".csv", ".jsonl", ".json")


@dataclass(frozen=True)
class Labelled:
    """A text, or a pair, and its class, its classes or its number."""

    texts: Texts
    label: Label


def read_labelled(
    paths: Paths,
    kind: Kind = "class",
    label_field: str = "label",
    text_fields: Sequence[str] = (),
    separator: str = "|",
    name: str = "",
) -> list[Labelled]:
    """Read labelled texts; `name` ("", "valid_", "test_") is the setting's prefix in errors.

    The texts are `text_fields`, or else all fields but the label. Several classes are a JSON list,
    or parted by `separator`.
    """
    found: list[Labelled] = []
    for path in _given(paths, name):
        records = read_located(path)
        labels = [_label(record, label_field, kind, separator, where) for where, record in records]
        texts = _texts(records, label_field, text_fields)
        found += map(Labelled, texts, labels)
        _check_width(texts, found[0].texts, path)
    return found


def read_texts(
    paths: Paths,
    text_fields: Sequence[str] = (),
    label_field: str = "label",
    name: str = "",
    blank: bool = False,
) -> list[Texts]:
    """Read texts, or pairs, that need no label; what is no table or JSON holds a text a line.

    Records without text are a mistake, unless they may be `blank`.
    """
    found: list[Texts] = []
    for path in _given(paths, name):
        if suffix(path) in TABLES:
            texts = _texts(read_located(path), label_field, text_fields, blank)
        else:
            texts = [(line.strip(),) for line in read_lines(path) if line.strip()]
        if not texts:
            raise UserError(f"There is no text in {path}; give a file with at least one line.")
        found += texts
        _check_width(texts, found[0], path)
    return found


def _given(paths: Paths, name: str) -> list[Path]:
    files = listed(paths)
    if not files:
        raise UserError(
            f"data: no examples are given; set {name}examples to .tsv, .csv, .jsonl or .json files."
        )
    return files


def _texts(
    records: Sequence[Located], label_field: str, text_fields: Sequence[str], blank: bool = False
) -> list[Texts]:
    """The texts of a file's records; where their fields are not named, the first one has them."""
    fields = _fields(*records[0], label_field, text_fields)
    found: list[Texts] = []
    for where, record in records:
        # A tokenizer of characters would learn stray spaces at the ends.
        texts = [string_field(record, field, "text_fields", where).strip() for field in fields]
        if not blank and not any(texts):
            raise UserError(
                f"{where}: there is no text in {' or '.join(map(repr, fields))}; correct or delete "
                f"the record."
            )
        found.append(tuple(texts))
    return found


def _fields(
    where: str, record: Record, label_field: str, text_fields: Sequence[str]
) -> Sequence[str]:
    fields = text_fields or [field for field in record if field != label_field]
    if not 1 <= len(fields) <= 2:
        raise UserError(
            f"{where}: beside the label there must be one text, or a pair, but there "
            f"{'are' if fields else 'is'} {_names(fields)}; name one or two as text_fields under "
            f"[data]."
        )
    return fields


def _label(record: Record, field: str, kind: Kind, separator: str, where: str) -> Label:
    if field not in record:
        raise UserError(
            f"{where}: there is no field {field!r} among {_names(record)}; name the right one as "
            f"label_field under [data]."
        )
    value = record[field]
    if kind == "number":
        return _number(value, field, where)
    if kind == "class":
        return _class(value, field, where)
    if isinstance(value, str):
        value = [part for part in value.split(separator) if part.strip()]
    items = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(_class(item, field, where) for item in items))


def _class(value: object, field: str, where: str) -> str:
    """The name of a class, which JSON may give as a number."""
    if isinstance(value, bool | int | float):
        value = json.dumps(value)
    name = string_field({field: value}, field, "label_field", where).strip()
    if not name:
        raise UserError(f"{where}: the label {field!r} is empty; add it, or delete the record.")
    return name


def _number(value: object, field: str, where: str) -> float:
    number = math.nan
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise UserError(
            f"{where}: the label {field!r} holds {json.dumps(value, ensure_ascii=False)[:40]}, but "
            f"must be a number; correct it, or set kind under [classify]."
        )
    return number


def _check_width(texts: Sequence[Texts], first: Texts, path: Path) -> None:
    if len(texts[0]) != len(first):
        raise UserError(
            f"{path}: each record has {len(texts[0])} texts, but {len(first)} in the file before; "
            f"name those that all files have as text_fields under [data]."
        )


def _names(fields: Iterable[str]) -> str:
    return ", ".join(map(repr, fields)) or "none"
