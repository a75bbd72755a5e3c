"""Tagged sentences from files of any kind: CoNLL's columns, or records with lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qkv.data.files import Paths, kind_of, text_files
from qkv.data.formats.conll import Sentence, read_conll
from qkv.data.formats.records import Record, as_text, quoted, read_records
from qkv.errors import UserError, shown

RECORDS = (".json", ".jsonl", ".parquet")
WORDS = ("tokens", "words")
LABELS = ("ner_tags", "tags", "labels")


def read_tagged(paths: Paths, word_column: int = 0, label_column: int = -1) -> list[Sentence]:
    """Read tagged sentences: records of .json, .jsonl and .parquet, or else CoNLL's columns.

    A record has a list of words, "tokens" or "words", and a list of as many labels, "ner_tags",
    "tags" or "labels", as Hugging Face's datasets have them. `read_conll` finds the columns.
    """
    sentences: list[Sentence] = []
    for path in text_files(paths):
        if kind_of(path) in RECORDS:
            sentences += _read(path)
        else:
            sentences += read_conll(path, word_column, label_column)
    return sentences


def _read(path: Path) -> list[Sentence]:
    sentences = [_sentence(record) for record in read_records(path)]
    return [sentence for sentence in sentences if sentence.words]


def _sentence(record: Record) -> Sentence:
    words, labels = _strings(record, WORDS, "words"), _strings(record, LABELS, "labels")
    if len(words) != len(labels):
        raise UserError(
            f"{record.where}: there are {len(words)} words but {len(labels)} labels; each word "
            f"needs one."
        )
    return Sentence(words, labels)


def _strings(record: Record, names: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the list under the first of the names; labels may be numbers."""
    name = next((name for name in names if name in record), None)
    if name is None:
        raise UserError(
            f"{record.where}: there is no list of {what} among {quoted(record)}; a record must "
            f'look like {{"tokens": ["New", "York"], "tags": ["B-place", "I-place"]}}.'
        )
    items = record[name]
    if not isinstance(items, list):
        raise UserError(
            f"{record.where}: field {name!r} holds {shown(items)}, but must be a list of {what}; "
            f"correct the record."
        )
    texts = [str(item) if isinstance(item, int) else item for item in items]
    strings = tuple(as_text(text, name, record.where).strip() for text in texts)
    if "" in strings:
        raise UserError(f"{record.where}: one of the {what} is empty; correct the record.")
    return strings
