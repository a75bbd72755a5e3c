"""Records with named fields from files: JSON objects, one a line, or a table with tabs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qkv.data.readers import holds_objects, parse_object, read_lines
from qkv.errors import UserError

Record = dict[str, object]
EXAMPLE = '{"text": "…", "label": "…"}'


def read_examples(path: str | Path, columns: Sequence[str] = ()) -> list[Record]:
    """Read a .jsonl file, or a table whose columns its first line names, or else `columns`.

    Blank lines are passed over, and so are spaces around a table's cells. A name that ends in .gz
    is decompressed.
    """
    path = Path(path)
    lines = [
        (f"{path}, line {number}", line)
        for number, line in enumerate(read_lines(path), 1)
        if line.strip()
    ]
    if holds_objects(path):
        records = [parse_object(line, where, EXAMPLE) for where, line in lines]
    else:
        records = _read_rows(lines, columns)
    if not records:
        raise UserError(f"There is no record in {path}; give a file with at least one.")
    return records


def _read_rows(lines: Sequence[tuple[str, str]], columns: Sequence[str]) -> list[Record]:
    if lines and not columns:
        (where, header), *lines = lines
        columns = _cells(header)
        if "" in columns or len(set(columns)) < len(columns):
            raise UserError(
                f"{where}: {', '.join(map(repr, columns))} are no names of columns; the first line "
                f"must name each column, none twice, unless the columns are given."
            )
    return [_read_row(line, columns, where) for where, line in lines]


def _read_row(line: str, columns: Sequence[str], where: str) -> Record:
    cells = _cells(line)
    if len(cells) != len(columns):
        raise UserError(
            f"{where}: the number of columns is {len(cells)}, but there are {len(columns)} names "
            f"({', '.join(columns)}); put one tab between two cells, and none inside of a cell."
        )
    return dict(zip(columns, cells, strict=True))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")]
