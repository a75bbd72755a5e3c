"""Sentence pairs: two line-aligned files, or tables, JSON and Parquet that hold both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from qkv.data.files import Paths, kind_of, listed, read_lines, text_files
from qkv.data.formats.records import IDS, NUMBER, TABLES, Field, Record, quoted, read_records
from qkv.errors import UserError

Pair = tuple[str, str]
LOOKED_AT = 20  # first rows that show whether a column holds ids
NAMES = ("source", "target"), ("src", "tgt")
WAY_OUT = "name the two sides as source_field and target_field under [data]"


def read_pairs(
    source: Paths = (),
    target: Paths = (),
    pairs: Paths = (),
    source_field: Field = "",
    target_field: Field = "",
    prefix: str = "",
) -> list[Pair]:
    """Read sentence pairs; `prefix` ("", "valid_", "test_") is the settings' in errors.

    Line n of a `source` file goes with line n of its `target` file; `pairs` are files with both
    sides. Where no fields are named, these are "source" and "target" or "src" and "tgt", the two
    columns that there are, or the first two of a table without header.
    """
    sources, targets = listed(source), listed(target)
    _check_aligned(sources, targets, prefix)
    fields = source_field, target_field
    if (source_field == "") != (target_field == ""):
        raise UserError("data: source_field and target_field go together; name both, or none.")
    examples: list[Pair] = []
    for source_path, target_path in zip(sources, targets, strict=True):
        examples += _read_aligned(source_path, target_path)
    for path in text_files(pairs):
        examples += _read_both_sides(path, () if source_field == "" else fields)
    return examples


def _check_aligned(sources: list[Path], targets: list[Path], prefix: str) -> None:
    if bool(sources) != bool(targets):
        given, missing = ("source", "target") if sources else ("target", "source")
        raise UserError(
            f"data: {prefix}{given} is given without {prefix}{missing}; each line needs its "
            f"translation, so set {prefix}{missing} too."
        )
    if len(sources) != len(targets):
        raise UserError(
            f"data: {prefix}source names {len(sources)} files but {prefix}target names "
            f"{len(targets)}; list them in pairs, the first with the first."
        )


def _read_aligned(source: Path, target: Path) -> Iterator[Pair]:
    for path in (source, target):
        if kind_of(path) in TABLES:
            raise UserError(
                f"{path} is a table by its name, but line-aligned files hold a sentence alone on "
                f"each line; give a table that holds both sides as pairs."
            )
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines but {target} has {len(targets):,}; line-aligned "
            f"files hold each sentence and its translation on the same line, so find the line "
            f"where they part."
        )
    if not sources:
        raise UserError(
            f"There is no text in {source}, {target}; give files with at least one sentence pair."
        )
    sides = ([line if line.strip() else "" for line in side] for side in (sources, targets))
    return zip(*sides, strict=True)


def _read_both_sides(path: Path, fields: Sequence[Field]) -> Iterator[Pair]:
    """Read a file that holds both sides; what is no known kind of file is tab-separated."""
    records = read_records(path, fields, others=".tsv")
    first = list(islice(records, LOOKED_AT))
    source, target = fields or _two_columns(first)
    for record in chain(first, records):
        yield record.text(source, "source_field"), record.text(target, "target_field")


def _named(record: Record) -> str:
    return "" if record.layout == "no header" else f", {quoted(record)}"


def _parted(record: Record) -> str:
    if record.layout == "object":
        return ', like {"source": "…", "target": "…"}'
    return ", with a tab between them in .tsv files and a comma in .csv files"


def _two_columns(records: Sequence[Record]) -> Sequence[str]:
    """Find the columns of source and target by their names and number, or refuse to guess."""
    record = records[0]
    columns = list(record)
    for names in NAMES:
        if record.keys() >= set(names):
            return names
    if len(columns) == 1 and not isinstance(record[columns[0]], dict):
        raise UserError(
            f"{record.where}: there is one column alone{_named(record)}; each row must hold the "
            f"source and the target{_parted(record)}."
        )
    if len(columns) == 2 and columns[0].lower() not in IDS:
        return columns
    if record.layout != "no header":
        raise UserError(
            f"{record.where}: the columns are {quoted(columns)}, which does not say what to "
            f"translate into what; {WAY_OUT}, like 'en' and 'de', or 'translation.en'."
        )
    if all(NUMBER.fullmatch(str(record["0"]).strip()) for record in records):
        raise UserError(
            f"{record.where}: the first of {len(columns)} columns holds numbers, which are no "
            f"text; {WAY_OUT} by their numbers (0 is the first)."
        )
    return columns[:2]  # public exports append attributions and scores
