"""Records with named fields from files: JSON objects, or a table with tabs or commas."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qkv.data.readers import holds_objects, kind_of, parse_object, read_lines
from qkv.errors import UserError

Record = dict[str, object]
Located = tuple[str, Record]  # after the file and line that it stands in
Row = tuple[str, list[str]]
EXAMPLE = '{"text": "…", "label": "…"}'
ARRAY = re.compile(r"\s*\[\s*[{\]]")
csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a cell may be a whole book


def read_examples(path: str | Path, columns: Sequence[str] = ()) -> list[Record]:
    """Read JSON objects, or a table whose columns its first line names, or else `columns`.

    Blank lines are passed over, and so are spaces around a table's cells. A name that ends in .gz
    is decompressed.
    """
    return [record for _, record in read_located(Path(path), columns)]


def read_located(path: Path, columns: Sequence[str] = ()) -> list[Located]:
    """Read the records of a file as `read_examples` does, each with its place.

    Files called .jsonl or .json hold an object a line, or one array; .csv files hold commas, and
    their quoted cells may hold commas and line ends; all others hold tabs, and no quoting.
    """
    lines = read_lines(path)
    if holds_objects(path):
        records = _read_objects(lines, path)
    elif suffix(path) == ".csv":
        rule = "put one comma between two cells, and quotes around a cell that holds one"
        records = _read_rows(_comma_rows(lines, path), columns, rule)
    else:
        rule = "put one tab between two cells, and none inside of a cell"
        records = _read_rows(_tab_rows(lines, path), columns, rule)
    if not records:
        raise UserError(f"There is no record in {path}; give a file with at least one.")
    return records


def suffix(path: Path) -> str:
    """How a file's name ends, without .gz."""
    return kind_of(path)


def _read_objects(lines: Sequence[str], path: Path) -> list[Located]:
    whole = "\n".join(lines) if suffix(path) == ".json" else ""
    if not ARRAY.match(whole):
        places = [(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]
        return [
            (where, parse_object(line, where, EXAMPLE)) for where, line in places if line.strip()
        ]
    try:
        items = json.loads(whole)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise UserError(
            f"{path}, line {line}: this is not valid JSON; a .json file holds one array of "
            f"objects, or an object on each line."
        ) from error
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise UserError(
                f"{path}, record {number}: this is JSON but no object; each record must look like "
                f"{EXAMPLE}."
            )
    return [(f"{path}, record {number}", item) for number, item in enumerate(items, 1)]


def _tab_rows(lines: Iterable[str], path: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}, line {number}", line.split("\t")


def _comma_rows(lines: Iterable[str], path: Path) -> Iterator[Row]:
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{path}, line {first}: this is not valid CSV ({error}); put quotes around a cell "
                f"that holds commas, quotes or line ends, and write quotes in it twice."
            ) from error
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield f"{path}, line {first}", cells


def _read_rows(rows: Iterable[Row], columns: Sequence[str], rule: str) -> list[Located]:
    records: list[Located] = []
    for where, cells in rows:
        cells = [cell.strip() for cell in cells]
        if not columns:
            columns = _check_columns(cells, where)
        elif len(cells) != len(columns):
            raise UserError(
                f"{where}: the number of columns is {len(cells)}, but there are {len(columns)} "
                f"names ({', '.join(columns)}); {rule}."
            )
        else:
            records.append((where, dict(zip(columns, cells, strict=True))))
    return records


def _check_columns(columns: list[str], where: str) -> list[str]:
    if "" in columns or len(set(columns)) < len(columns):
        raise UserError(
            f"{where}: {', '.join(map(repr, columns))} are no names of columns; the first line "
            f"must name each column, none twice, unless the columns are given."
        )
    return columns
