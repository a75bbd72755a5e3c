"""Records with named fields: JSON lines and tables."""

import gzip
from pathlib import Path

import pytest
from qkv.data.table import read_examples

from qkv.errors import UserError


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("end", ["", ".gz"])
def test_json_lines_and_tables_hold_the_same_records(tmp_path: Path, end: str) -> None:
    lines = '{"label": "good", "text": "很好 "}\n\n{"label": "bad", "text": "“no”"}\r\n'
    objects = read_examples(write(tmp_path / f"a.jsonl{end}", lines))
    rows = read_examples(write(tmp_path / f"a.tsv{end}", 'label\ttext\ngood\t很好 \n\nbad\t"no"\n'))
    assert objects == [{"label": "good", "text": "很好 "}, {"label": "bad", "text": "“no”"}]
    assert rows == [{"label": "good", "text": "很好"}, {"label": "bad", "text": '"no"'}]


def test_json_values_stay_what_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"options": ["a", "b"], "answer": 1, "more": null}\n')
    assert read_examples(path) == [{"options": ["a", "b"], "answer": 1, "more": None}]


def test_columns_may_be_named_where_the_file_does_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "good\tyes\nbad\t\n")
    assert read_examples(str(path), ["label", "text"]) == [
        {"label": "good", "text": "yes"},
        {"label": "bad", "text": ""},
    ]


def test_a_real_table_is_read(shared_data: Path) -> None:
    records = read_examples(shared_data / "sst2" / "valid.tsv")
    assert len(records) == 872
    assert {record["label"] for record in records} == {"negative", "positive"}
    assert records[0] == {"label": "negative", "text": "one long string of cliches ."}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", "", "There is no record in {path}; give a file with at least one."),
        ("a.tsv", "\n\n", "There is no record in {path}"),
        ("a.tsv", "label\ttext\n", "There is no record in {path}"),
        ("a.tsv", "label\ttext\n\na\tb\tc\n", "{path}, line 3: the number of columns is 3, but "),
        ("a.tsv", "label\ttext\na b\n", "2 names (label, text); put one tab between two cells"),
        ("a.tsv", "label\tlabel\na\tb\n", "line 1: 'label', 'label' are no names of columns"),
        ("a.tsv", "label\t\na\tb\n", "line 1: 'label', '' are no names of columns"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "{path}, line 2: this is not valid JSON"),
        ("a.jsonl", "[" * 100_000, "line 1: this is not valid JSON"),
        ("a.json", '["a"]\n', "line 1: this is JSON but no object"),
    ],
)
def test_what_is_no_record_is_located(
    tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UserError) as caught:
        read_examples(path)
    assert sentence.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*none\.tsv"):
        read_examples(tmp_path / "none.tsv")
