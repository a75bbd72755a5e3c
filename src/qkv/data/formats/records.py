"""Records of files of any kind: lines of text, tables with tabs or commas, JSON, Parquet."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, cast

from qkv.data.files import Progress, check_seekable, chunks, kind_of, lines, opened
from qkv.errors import UserError, missing_package, shortened, shown
from qkv.text.record_template import check_characters

Field = str | int
TABLES = (".tsv", ".csv", ".json", ".jsonl", ".parquet")
NUMBER = re.compile(r"-?\d+", re.ASCII)
SPACE = re.compile(r"\s*")
IDS = {"id", "idx", "index", "guid"}
LANGUAGES = (
    "ar bg bn ca cs da de el en es et fa fi fr he hi hr hu id it ja ko lt lv ms nl no pl pt ro ru "
    "sk sl sr sv sw ta te th tr uk ur vi zh"
)
WORDS = (
    "text sentence sentence1 sentence2 first second premise hypothesis title body content review "
    "document summary label labels class category tag score source target src tgt input output "
    "instruction prompt response completion question answer answers context system messages "
    "sentiment polarity comment tweet phrase arabic chinese czech danish dutch english finnish "
    "french german greek hebrew hindi hungarian indonesian italian japanese korean norwegian "
    "persian polish portuguese romanian russian spanish swedish thai turkish ukrainian vietnamese "
    "文本 句子 标题 内容 正文 评论 标签 类别 情感 原文 译文 中文 英文 汉语 英语 问题 答案 回答 "
    "指令 输入 输出"
)
MARKS = ",;\t"
"""What parts the cells of a .csv file: the first of these that its first row has."""
SEPARATOR = re.compile("sep=.", re.IGNORECASE)  # a line for spreadsheets, above the header
COLUMN_NAMES = {*IDS, *LANGUAGES.split(), *WORDS.split()}
"""Words that make a table's first row a header if all of its cells are such words."""
csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a cell may be a whole book


@dataclass(slots=True, eq=False)
class Record(Mapping[str, object]):
    """A row of a file: its values by column, by dotted path, or by number.

    "translation.en" is the "en" of the object "translation", and "label" also finds "Label" if that
    is the only such name. In tables 0 is the first column and -1 the last; columns that no header
    names go by their numbers alone.
    """

    fields: dict[str, object]
    where: str  # its file and line, for messages
    layout: Literal["header", "no header", "object"] = "object"

    def column(self, field: Field) -> str:
        """Return the name of a column that may be given by its number, or in another case."""
        name = str(field)
        if name in self.fields:
            return name
        if self.layout == "object" or not NUMBER.fullmatch(name):
            alike = [column for column in self.fields if column.lower() == name.lower()]
            return alike[0] if len(alike) == 1 else name
        names = list(self.fields)
        return names[int(name)] if -len(names) <= int(name) < len(names) else name

    def __getitem__(self, field: Field) -> object:
        name = self.column(field)
        if name in self.fields:
            return self.fields[name]
        value: object = self.fields
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                raise KeyError(field)
            value = value[part]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def value(self, field: Field, setting: str) -> object:
        """Return a field's value; `setting` is where its name is given."""
        try:
            return self[field]
        except KeyError as error:
            if self.layout != "no header":
                raise UserError(
                    f"{self.where}: there is no field {field!r} among {quoted(self)}; name the "
                    f"right one as {setting} under [data]."
                ) from error
            raise UserError(
                f"{self.where}: there is no column {field!r}, and no header was recognised in "
                f"{quoted(map(shortened, self.fields.values()))}; if these name the columns, give "
                f"one as {setting} under [data], and else a column's number (0 is the first)."
            ) from error

    def text(self, field: Field, setting: str) -> str:
        """Return a field's text; white space alone counts as none."""
        text = as_text(self.value(field, setting), field, self.where, setting)
        return text if text.strip() else ""


def as_text(value: object, field: Field, where: str, setting: str = "") -> str:
    """Return a field's value if it is text; `setting` is where its name is given."""
    if not isinstance(value, str):
        another = f", or name another field as {setting} under [data]" if setting else ""
        raise UserError(
            f"{where}: field {field!r} holds {shown(value)}, but must be a string; correct the "
            f"record{another}."
        )
    check_characters(value, f"{where}: field {field!r}")
    return value


def quoted(names: Iterable[object]) -> str:
    """Write names for a message, each in quotes."""
    return ", ".join(map(repr, names)) or "none"


def read_records(
    path: str | Path,
    fields: Sequence[Field] = (),
    progress: Progress | None = None,
    others: str = ".txt",
) -> Iterator[Record]:
    """Yield the records of a file one by one, blank ones left out; its name says what it holds.

    .tsv has tabs and no quoting; .csv commas and quotes, or semicolons or tabs if its first row has
    these and no comma (spreadsheets write so where numbers have decimal commas); .json an array, or
    objects one after the other; .jsonl an object a line; .parquet columns. A line of .txt, and of
    all kinds that are not known, is a record with the column "text", unless these are `others`,
    ".tsv". The first row of a table is its header if it has one of the `fields` that are asked for,
    begins with an id's name, or has COLUMN_NAMES alone.
    """
    path = Path(path)
    kind = kind_of(path) if kind_of(path) in TABLES else others
    records: Iterator[Record]
    if kind == ".csv":
        records = _table(_comma_rows(lines(path, progress), path), path, fields)
    elif kind == ".tsv":
        rows = ((n, line.split("\t")) for n, line in enumerate(lines(path, progress), 1))
        records = _table(rows, path, fields)
    elif kind == ".jsonl":
        records = json_lines(lines(path, progress), path)
    elif kind == ".json":
        records = _json_values(path, progress)
    elif kind == ".parquet":
        records = _parquet_rows(path, progress)
    else:
        texts = enumerate(lines(path, progress), 1)
        records = (
            Record({"text": line}, f"{path}, line {n}", "header")
            for n, line in texts
            if line.strip()
        )
    first = next(records, None)
    if first is None:
        raise UserError(f"There is no record in {path}; give a file with at least one.")
    yield from chain([first], records)


def _table(
    rows: Iterable[tuple[int, list[str]]], path: Path, fields: Sequence[Field]
) -> Iterator[Record]:
    names: list[str] = []
    layout: Literal["header", "no header"] = "no header"
    for number, cells in rows:
        where = f"{path}, line {number}"
        if not "".join(cells).strip():
            continue
        if not names:
            names = [cell.strip() for cell in cells]
            if _is_header(names, fields, where):
                layout = "header"
                continue
            names = list(map(str, range(len(cells))))
        if len(cells) != len(names):
            is_csv = kind_of(path) == ".csv"
            raise UserError(
                f"{where}: the number of columns is {len(cells)}, but {len(names)} in the first "
                f"row; a {'comma' if is_csv else 'tab'} inside of a text begins a new column, so "
                f"{'put quotes around the text' if is_csv else 'write it as a space'}."
            )
        yield Record(dict(zip(names, cells, strict=True)), where, layout)


def _is_header(names: Sequence[str], fields: Sequence[Field], where: str) -> bool:
    are_distinct = "" not in names and len(set(names)) == len(names)
    asked = {str(field).lower() for field in fields if not NUMBER.fullmatch(str(field))}
    words = [name.lower() for name in names]
    if asked.isdisjoint(words):
        has_id = len(words) > 1 and words[0] in IDS
        return are_distinct and (has_id or COLUMN_NAMES.issuperset(words))
    if not are_distinct:
        raise UserError(
            f"{where}: {quoted(names)} are no names of columns; a header must name each column, "
            f"and none twice."
        )
    return True


def _comma_rows(texts: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    texts = iter(texts)
    first, above = next(texts, ""), 1
    mark = next((mark for mark in MARKS if mark in first), MARKS[0])
    if SEPARATOR.fullmatch(first):
        mark, first, above = first[-1], next(texts, ""), 2
    rest = (line + "\n" for line in chain([first], texts))
    reader = csv.reader(rest, delimiter=mark, strict=True)
    while True:
        number = reader.line_num + above
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{path}, line {number}: this is not valid CSV ({error}); put quotes around a cell "
                f"that holds commas, quotes or line ends, and write quotes in it twice."
            ) from error
        if cells is None:
            return
        yield number, cells


def json_lines(texts: Iterable[str], path: Path, first: int = 1) -> Iterator[Record]:
    """Yield the records of a .jsonl file's lines, of which the first has this number."""
    for number, line in enumerate(texts, first):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _not_json(path, number) from error
            yield _object(value, path, number)


def _object(value: object, path: Path, line: int) -> Record:
    if not isinstance(value, dict):
        raise UserError(
            f"{path}, line {line}: this is JSON but no object; a record must look like "
            f'{{"text": "…", "label": "…"}}.'
        )
    return Record(value, f"{path}, line {line}")


def _json_values(path: Path, progress: Progress | None) -> Iterator[Record]:
    """Yield the items of an array, or objects one after the other, as their text is read."""
    decode = json.JSONDecoder().raw_decode
    texts = chunks(path, progress)
    text, start, line = "", 0, 1

    def read_on() -> bool:
        """Drop the text before `start`, and read at least as much as is left of it."""
        nonlocal text, start
        parts = [text[start:]]
        wanted = size = len(parts[0])
        for part in texts:
            parts.append(part)
            wanted -= len(part)
            if wanted < 0:
                break
        text, start = "".join(parts), 0
        return len(text) > size

    def go_to(end: int) -> str:
        """Move to the first character from `end` on that is no space, and return it."""
        nonlocal start, line
        while True:
            end = cast(re.Match[str], SPACE.match(text, end)).end()
            line += text.count("\n", start, end)
            start = end
            if start < len(text) or not read_on():
                return text[start : start + 1]
            end = start

    mark = go_to(0)
    is_array = mark == "["
    if is_array:
        mark = go_to(start + 1)
    while mark and not (is_array and mark == "]"):
        try:
            value, end = decode(text, start)
        except (ValueError, RecursionError) as error:
            if isinstance(error, ValueError) and read_on():
                continue
            end = getattr(error, "pos", start)
            raise _not_json(path, line + text.count("\n", start, end)) from error
        yield _object(value, path, line)
        mark = go_to(end)
        if is_array and mark == ",":
            mark = go_to(start + 1)
        elif is_array and mark != "]":
            raise _not_json(path, line)
    if is_array and (not mark or go_to(start + 1)):
        raise _not_json(path, line)


def _not_json(path: Path, line: int) -> UserError:
    return UserError(
        f"{path}, line {line}: this is not valid JSON; a .jsonl file holds an object on each line, "
        f"and a .json file an array of objects, or objects one after the other."
    )


def _parquet_rows(path: Path, progress: Progress | None) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise missing_package(f"Reading {path}", "pyarrow", "parquet") from error
    check_seekable(path)
    with opened(path, progress) as file:
        try:
            # Without a buffer, row groups are read one by one.
            batches = ParquetFile(file, pre_buffer=False).iter_batches(1024)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield Record(row, f"{path}, record {number}", "header")
        except (pyarrow.ArrowException, OSError, ValueError) as error:  # also text not in UTF-8
            raise UserError(f"{path} is not a whole Parquet file; fetch it again.") from error
