"""Records of every kind of file."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import Record, read_records
from qkv.errors import UserError
from tests.data.helpers import COMPRESSED, complaint, write, write_parquet

RECORDS: list[dict[str, object]] = [
    {"label": "good", "text": " 很好 "},
    {"label": "bad", "text": 'a "bad", one'},
]
OBJECTS = [json.dumps(record) for record in RECORDS]
FORMS = {
    "a.tsv": 'label\ttext\ngood\t 很好 \n\nbad\ta "bad", one\n',
    "b.tsv": '\ufeffLabel\ttext\r\ngood\t 很好 \r\n \t \r\nbad\ta "bad", one',
    "a.csv": 'label,text\ngood, 很好 \n\nbad,"a ""bad"", one"\n',
    "A.CSV": 'label,text\r\n"good"," 很好 "\r\n,\r\nbad,"a ""bad"", one"',
    "a.jsonl": "\n\n".join(OBJECTS),
    "a.json": "\r\n".join(OBJECTS) + "\n",
    "b.json": json.dumps(RECORDS),
    "c.json": "\n " + json.dumps(RECORDS, indent=2) + "\n\n",
    "d.json": "\n".join(json.dumps(record, indent=2) for record in RECORDS),
}


@pytest.mark.parametrize("end", COMPRESSED)
@pytest.mark.parametrize("name", [*FORMS, "a.parquet"])
def test_all_kinds_of_files_hold_the_same_records(tmp_path: Path, name: str, end: str) -> None:
    path = tmp_path / (name + end)
    if name.endswith("parquet"):
        write_parquet(path, RECORDS)
    else:
        write(path, FORMS[name].replace("Label", "label"))
    assert list(read_records(path)) == list(read_records(str(path))) == RECORDS
    n_bytes: list[int] = []
    list(read_records(path, progress=n_bytes.append))
    assert sum(n_bytes) >= path.stat().st_size


@pytest.mark.parametrize("name", ["a.txt", "a", "a.md.gz"])
def test_a_line_of_plain_text_is_a_record(tmp_path: Path, name: str) -> None:
    records = list(read_records(write(tmp_path / name, " one\ttab\n \n二\r\n")))
    assert records == [{"text": " one\ttab"}, {"text": "二"}]
    assert records[1].where == f"{tmp_path / name}, line 3"


def test_fields_go_by_name_by_number_and_by_dotted_path(tmp_path: Path) -> None:
    nested: dict[str, object] = {"translation": {"en": "a", "zh": {"x": 1}}, "a.b": 2, "7": 3}
    for path in (
        write(tmp_path / "a.jsonl", json.dumps(nested)),
        write_parquet(tmp_path / "a.parquet", [nested]),
    ):
        [record] = read_records(path)
        fields = ["translation.en", "translation.zh.x", "a.b", "7"]
        assert [record[field] for field in fields] == ["a", 1, 2, 3]
        missing = ["translation.de", "translation.en.x", "a", "0.1", "9", ""]
        assert not any(field in record for field in missing)
    assert "0" not in Record(nested, "") and 0 not in Record(nested, "")  # objects have no order
    table = Record({"b": "x", "1": "y", "a": "z"}, "", "header")
    assert [table[field] for field in (0, "0", -1, "1", "-2", 2)] == ["x", "x", "z", "y", "y", "z"]  # type: ignore[index]
    assert 3 not in table and "-4" not in table


@pytest.mark.parametrize(
    ("first", "fields", "is_header"),
    [
        ("text\tlabel", [], True),
        ("Source\tTARGET", [], True),
        ("en\tzh\tid", [], True),
        ("English\tgerman", [], True),
        ("中文\t英文", [], True),
        ("id\tEnglish text\tDeutsch", [], True),
        ("id\tid", [], False),
        ("stars\tReview", ["review"], True),
        ("en\ten", [], False),
        ("good\ttext", [], False),
        ("stars\treview", [], False),
        ("stars\treview", ["stars"], True),
        ("stars\treview", ["review", "other"], True),
        ("stars\treview", [0, "1"], False),
        ("0\t1", [0, "1"], False),
        ("text\tlabel", [0], True),
    ],
)
@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_header_is_what_is_asked_for_or_words_that_name_columns(
    tmp_path: Path, name: str, first: str, fields: list[str | int], is_header: bool
) -> None:
    mark = "," if name == "a.csv" else "\t"
    second = first.replace("\t", "x\t") + "x"
    content = f"{first}\n{second}\n".replace("\t", mark)
    records = list(read_records(write(tmp_path / name, content), fields))
    names, cells = first.split("\t"), second.split("\t")
    numbers = list(map(str, range(len(cells))))
    expected = (
        [dict(zip(names, cells, strict=True))]
        if is_header
        else [dict(zip(numbers, row, strict=True)) for row in (names, cells)]
    )
    assert records == expected
    assert records[0].where == f"{tmp_path / name}, line {1 + is_header}"


def test_a_field_is_found_in_another_case_if_it_is_the_only_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "Text,Label\na film,good\n")
    [record] = read_records(path, ["label"])
    assert (record["label"], record["text"]) == ("good", "a film")
    two = Record({"Label": 1, "LABEL": 2}, "a.jsonl, line 1")
    assert "label" not in two and two["LABEL"] == 2


@pytest.mark.parametrize(
    ("mark", "above"), [(";", ""), ("\t", ""), (";", "sep=;\r\n"), ("|", "SEP=|\n")]
)
def test_a_csv_file_of_a_spreadsheet_may_have_other_marks(
    tmp_path: Path, mark: str, above: str
) -> None:
    rows = 'en;de\n"a; b, c";x\nd,e;y\n'.replace(";", mark)
    path = write(tmp_path / "a.csv", above + rows)
    records = list(read_records(path))
    assert records == [{"en": f"a{mark} b, c", "de": "x"}, {"en": "d,e", "de": "y"}]
    assert records[0].where == f"{path}, line {3 if above else 2}"
    comma = write(tmp_path / "b.csv", "en,de\na;b,c\n")
    assert list(read_records(comma)) == [{"en": "a;b", "de": "c"}]


CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\ufeff"))


@given(rows=st.lists(st.tuples(CELLS, CELLS.filter(str.strip)), min_size=1))
@settings(max_examples=60)
def test_csv_is_read_as_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    content = io.StringIO()
    csv.writer(content).writerows([("first", "second"), *rows])
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", content.getvalue())
    assert [tuple(record.values()) for record in read_records(path)] == rows


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text('a"\\[]{},\n爱'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
    max_leaves=5,
)


@given(
    records=st.lists(st.dictionaries(st.text("ab"), VALUES), min_size=1, max_size=8),
    size=st.sampled_from([1, 300, 70_000]),
    indent=st.sampled_from([None, 1]),
)
@settings(max_examples=60)
def test_json_is_read_as_it_is_written_however_long_it_is(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, object]],
    size: int,
    indent: int | None,
) -> None:
    records = [{"pad": "x" * size, **record} for record in records]
    folder = tmp_path_factory.mktemp("json")
    array = write(folder / "a.json", json.dumps(records, indent=indent))
    objects = write(folder / "b.json", "\n".join(json.dumps(one, indent=indent) for one in records))
    assert list(read_records(array)) == list(read_records(objects)) == records
    ends = [record.where.rpartition(" ")[2] for record in read_records(objects)]
    counts = [json.dumps(record, indent=indent).count("\n") + 1 for record in records]
    assert ends == [str(1 + sum(counts[:number])) for number in range(len(records))]


def test_a_cell_may_hold_a_whole_book_and_lines_stay_counted(tmp_path: Path) -> None:
    book = "word\r\n" * 40_000
    path = write(tmp_path / "a.csv", f'text,label\r\n"{book}",x\r\n\r\nb,c\r\n')
    records = list(read_records(path))
    assert records[0]["text"] == book.replace("\r", "")
    assert records[1].where == f"{path}, line 40004"


def test_records_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    many = "\n".join(f'{{"text": "{number}"}}' for number in range(100_000))
    for name, content in {
        "a.jsonl": many,
        "a.json": f"[{many.replace(chr(10), ',')}]",
        "a.tsv": many,
        "a.txt": many,
    }.items():
        path = write(tmp_path / name, content)
        n_bytes: list[int] = []
        records = read_records(path, progress=n_bytes.append)
        next(records)
        assert 0 < sum(n_bytes) < path.stat().st_size / 4


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", "", "There is no record in {path}; give a file with at least one."),
        ("a.json", " [ ]\n", "There is no record in {path}"),
        ("a.json", "\n", "There is no record in {path}"),
        ("a.tsv", "label\ttext\n\n \t\n", "There is no record in {path}"),
        ("a.csv", ",\n", "There is no record in {path}"),
        ("a.txt", " \n", "There is no record in {path}"),
        (
            "a.tsv",
            "label\ttext\n\na\tb\tc\n",
            "{path}, line 3: the number of columns is 3, but 2 in the first row; a tab inside of a "
            "text begins a new column, so write it as a space.",
        ),
        ("a.tsv", "x\ty\nx y\n", "{path}, line 2: the number of columns is 1, but 2 in the first"),
        ("a.csv", "x,y\n1\n", "is 1, but 2 in the first row; a comma inside of a text begins a"),
        ("a.csv", 'x,y\n1,"a" b\n', "{path}, line 2: this is not valid CSV ("),
        ("a.csv", 'x,y\n1,x\n1,"a\n\nb\n', "{path}, line 3: this is not valid CSV (unexpected e"),
        ("a.tsv", "label\tq\tlabel\na\tb\tc\n", "line 1: 'label', 'q', 'label' are no names of c"),
        ("a.csv", ",label\na,b\n", "line 1: '', 'label' are no names of columns; a header must"),
        ("a.jsonl", '{"a": 1}\n\n{"a": \n', "{path}, line 3: this is not valid JSON; a .jsonl f"),
        ("a.jsonl", '{"a": 1} x', "{path}, line 1: this is not valid JSON"),
        ("a.jsonl", "[" * 100_000, "{path}, line 1: this is not valid JSON"),
        ("a.jsonl", '["a"]', "{path}, line 1: this is JSON but no object; a record must look like"),
        ("a.json", "[" * 100_000, "{path}, line 1: this is not valid JSON"),
        ("a.json", '[{"a": 1},\n3]', "{path}, line 2: this is JSON but no object"),
        ("a.json", '[{"a": 1}\n,\n{"b" 1}]', "{path}, line 3: this is not valid JSON"),
        ("a.json", '[{"a": 1}\n{"b": 1}]', "{path}, line 2: this is not valid JSON"),
        ("a.json", '[{"a": 1},\n{"b":', "{path}, line 2: this is not valid JSON"),
        ("a.json", '[{"a": 1}\n', "{path}, line 2: this is not valid JSON"),
        ("a.json", '[{"a": 1}]\n]', "{path}, line 2: this is not valid JSON"),
        ("a.json", '{"a": 1}\nx', "{path}, line 2: this is not valid JSON"),
    ],
)
def test_what_is_no_record_is_located(
    tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    path = write(tmp_path / name, content)
    assert sentence.format(path=path) in complaint(read_records, path, ["label"])


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", RECORDS)
    whole = path.read_bytes()
    for content in (b"", b"plain text", whole[:-5], whole[5:]):
        path.write_bytes(content)
        assert f"{path} is not a whole Parquet file; fetch" in complaint(read_records, path)


def test_a_missing_pyarrow_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    message = complaint(read_records, write(tmp_path / "a.parquet", "x"))
    assert message.endswith('needs pyarrow; run: pip install "qkv[parquet]".')


def test_parquet_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    _, offsets, content = pyarrow.array([b"\xae\xff"]).buffers()
    text = pyarrow.StringArray.from_buffers(1, offsets, content)
    write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet is not a whole Parquet file"):
        list(read_records(tmp_path / "a.parquet"))
