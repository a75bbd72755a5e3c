"""Labelled texts: tables and JSON."""

import csv
import gzip
import io
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qkv.data.table import read_examples

from qkv.data.formats.labelled import Labelled, read_labelled, read_texts
from qkv.errors import UserError


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


LABELLED = [Labelled(("good film",), "yes"), Labelled(('a "bad", one',), "no")]
FORMS = {
    "a.tsv": 'label\ttext\nyes\tgood film \n\nno\ta "bad", one\n',
    "b.tsv": 'text\tlabel\r\ngood film\tyes\r\n \t \r\na "bad", one\tno',
    "a.csv": 'text,label\n" good film",yes\n\n"a ""bad"", one", no\n',
    "a.jsonl": '{"text":"good film ", "label":"yes"}\n\n{"label":"no", "text":"a \\"bad\\", one"}',
    "a.json": '[{"text": "good film", "label": "yes"},\n{"label":"no", "text":"a \\"bad\\", one"}]',
}


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("name", FORMS)
def test_all_formats_hold_the_same_examples(tmp_path: Path, name: str, end: str) -> None:
    path = write(tmp_path / (name + end), FORMS[name])
    assert read_labelled(path) == LABELLED
    assert read_texts([str(path)]) == [one.texts for one in LABELLED]


def test_files_are_joined_in_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, text) for name, text in FORMS.items()]
    assert read_labelled(paths) == LABELLED * len(FORMS)


CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r")).map(str.strip)


@given(rows=st.lists(st.tuples(CELLS, CELLS.filter(bool)), min_size=1))
@settings(max_examples=60)
def test_csv_is_read_as_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    content = io.StringIO()
    csv.writer(content).writerows([("first", "second"), *rows])
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", content.getvalue())
    assert read_texts(path) == rows
    assert [tuple(record.values()) for record in read_examples(path)] == rows


def test_line_ends_inside_of_cells_keep_the_numbers_of_lines_right(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\r\n"one\r\ntwo",0\r\n\r\nthree,x\r\n')
    assert read_labelled(path)[0].texts == ("one\ntwo",)
    with pytest.raises(UserError, match=r"a\.csv, line 5: the label 'label' holds \"x\""):
        read_labelled(path, "number")


def test_pairs_keep_the_order_of_the_columns_or_of_their_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "second\tlabel\tfirst\nb\tx\ta\n\tx\ta\n")
    assert [one.texts for one in read_labelled(path)] == [("b", "a"), ("", "a")]
    fields = ("first", "second")
    assert read_labelled(path, text_fields=fields)[0] == Labelled(("a", "b"), "x")
    assert read_texts(path, ["first"]) == [("a",), ("a",)]


def test_columns_go_by_other_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "id\tstars\treview\n7\t5\tnice\n")
    assert read_labelled(path, "class", "stars", ["review"]) == [Labelled(("nice",), "5")]
    assert read_texts(path, label_field="id", text_fields=["review"]) == [("nice",)]


def test_json_may_give_classes_as_numbers(tmp_path: Path) -> None:
    lines = [{"text": "a", "label": label} for label in (0, 1, True, "1", 2.5)]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert [one.label for one in read_labelled(path)] == ["0", "1", "true", "1", "2.5"]


def test_several_classes_are_lists_or_parted_by_a_separator(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\ttext\na|b\tx\n\tx\n b | a |b|\tx\na;b\tx\n")
    found = [one.label for one in read_labelled(path, "classes")]
    assert found == [("a", "b"), (), ("b", "a"), ("a;b",)]
    assert read_labelled(path, "classes", separator=";")[3].label == ("a", "b")
    lines = [{"text": "x", "label": label} for label in (["a|b", 3], [], None, "a|b", 4)]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    found = [one.label for one in read_labelled(path, "classes")]
    assert found == [("a|b", "3"), (), (), ("a", "b"), ("4",)]


def test_numbers_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\ttext\n2.5\tx\n-3\tx\n1e-2\tx\n")
    assert [one.label for one in read_labelled(path, "number")] == [2.5, -3.0, 0.01]
    path = write(tmp_path / "a.jsonl", '{"label": 4, "text": "x"}\n{"label": "0.5", "text": "x"}')
    assert [one.label for one in read_labelled(path, "number")] == [4.0, 0.5]


def test_plain_text_is_a_text_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", " one\ttab\n\n二\r\n")
    assert read_texts(path) == [("one\ttab",), ("二",)]


def complaint(path: Path, **arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        read_labelled(path, **arguments)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.mark.parametrize(
    ("name", "content", "arguments", "sentence"),
    [
        ("a.tsv", "tag\ttext\ta\nx\ty\tz\n", {}, "line 2: there is no field 'label' among 'tag',"),
        ("a.tsv", "tag\ttext\nx\ty\n", {}, "name the right one as label_field under [data]."),
        ("a.tsv", "label\ta\tb\tc\n1\tx\ty\tz\n", {}, "but there are 'a', 'b', 'c'; name one or t"),
        ("a.tsv", "label\n1\n", {}, "but there is none; name one or two as text_fields under [da"),
        (
            "a.tsv",
            "label\ta\n1\tx\n",
            {"text_fields": "b"},
            "no field 'b' among 'label', 'a'; name",
        ),
        ("a.tsv", "label\ta\n1\tx\n", {"text_fields": "aaa"}, "one text, or a pair, but there are"),
        ("a.tsv", "label\ttext\n1\tx\n2\t \n", {}, "line 3: there is no text in 'text'; correct"),
        ("a.tsv", "label\ta\tb\n1\t\t \n", {}, "line 2: there is no text in 'a' or 'b'; correct"),
        ("a.tsv", "label\ttext\n\tx\n", {}, "line 2: the label 'label' is empty; add it, or"),
        ("a.tsv", "label\ttext\nnan\tx\n", {"kind": "number"}, 'holds "nan", but must be a number'),
        (
            "a.tsv",
            "label\ttext\n\tx\n",
            {"kind": "number"},
            "line 2: the label 'label' holds \"\",",
        ),
        ("a.tsv", "label\ttext\n1\n", {}, "line 2: the number of columns is 1, but there are 2 n"),
        ("a.csv", "label,text\n1\n", {}, "(label, text); put one comma between two cells, and quo"),
        ("a.csv", 'label,text\n1,"a" b\n', {}, "line 2: this is not valid CSV ("),
        (
            "a.csv",
            'label,text\n1,x\n1,"a\n\nb\n',
            {},
            "line 3: this is not valid CSV (unexpected e",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": null}',
            {},
            "line 1: field 'label' holds null, but mus",
        ),
        ("a.jsonl", '{"text": "a", "label": [[1]]}', {"kind": "classes"}, "holds [1], but must be"),
        ("a.jsonl", '{"text": 3, "label": "a"}', {}, "field 'text' holds 3, but must be a string"),
        ("a.jsonl", '{"text": "a", "label": true}', {"kind": "number"}, "holds true, but must be"),
        ("a.jsonl", '{"text": "a", "label": NaN}', {"kind": "number"}, "holds NaN, but must be a "),
        ("a.jsonl", '{"text": "a", "label": "\\ud800"}', {}, "holds half a surrogate pair"),
        ("a.jsonl", '{"a": "x", "label": 1}\n{"b": "x", "label": 1}', {}, "line 2: there is no f"),
        ("a.json", '[{"text": "a"\n, "label" 1}]', {}, "a.json, line 2: this is not valid JSON; a"),
        ("a.json", '[{"text": "a", "label": 1}, 3]', {}, "record 2: this is JSON but no object; e"),
        ("a.json", "[ ]", {}, "There is no record in "),
        ("a.csv", "\n\n", {}, "There is no record in "),
    ],
)
def test_what_is_no_example_is_located(
    tmp_path: Path, name: str, content: str, arguments: dict[str, object], sentence: str
) -> None:
    assert sentence in complaint(write(tmp_path / name, content), **arguments)


def test_files_of_different_shape_do_not_mix(tmp_path: Path) -> None:
    one = write(tmp_path / "1.tsv", "label\ttext\na\tx\n")
    two = write(tmp_path / "2.tsv", "label\ttext\tmore\na\tx\ty\n")
    sentence = r"2\.tsv: each record has 2 texts, but 1 in the file before; name those"
    for read in (read_labelled, read_texts):
        with pytest.raises(UserError, match=sentence):
            read([one, two])  # type: ignore[operator]
    assert len(read_labelled([one, two], text_fields=["text"])) == 2


def test_missing_files_and_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data: no examples are given; set valid_examples to"):
        read_labelled([], name="valid_")
    with pytest.raises(UserError, match=r"There is no file .*none\.tsv"):
        read_labelled(tmp_path / "none.tsv")
    with pytest.raises(UserError, match="There is no text in"):
        read_texts(write(tmp_path / "a.txt", " \n\n"))


@pytest.mark.parametrize(
    ("name", "n_texts", "counts"),
    [
        ("sst2/valid.tsv", 1, {"positive": 444, "negative": 428}),
        ("chnsenticorp/valid.tsv.gz", 1, None),
        ("mrpc/train.tsv.gz", 2, None),
        ("snli_small/valid.tsv", 2, None),
    ],
)
def test_real_tables_are_read(
    shared_data: Path, name: str, n_texts: int, counts: dict[str, int] | None
) -> None:
    examples = read_labelled(shared_data / name)
    lines = (shared_data / name).read_bytes()
    lines = gzip.decompress(lines) if name.endswith(".gz") else lines
    assert len(examples) == lines.count(b"\n") - 1
    assert {len(one.texts) for one in examples} == {n_texts}
    assert all(text for one in examples for text in one.texts)
    assert counts is None or Counter(one.label for one in examples) == counts


def test_a_file_s_name_may_be_in_capitals(tmp_path: Path) -> None:
    for name in ("A.CSV", "b.Tsv", "c.JSONL"):
        form = next(FORMS[known] for known in FORMS if Path(known).suffix in name.lower())
        assert read_labelled(write(tmp_path / name, form)) == LABELLED


def test_a_cell_may_hold_a_whole_book(tmp_path: Path) -> None:
    book = "word " * 40_000
    [found] = read_labelled(write(tmp_path / "a.csv", f"text,label\n{book},long\n"))
    assert found == Labelled((book.strip(),), "long")


def test_records_without_text_keep_their_places_where_they_may(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,review\n1,good\n2,\n3,bad\n")
    assert read_texts([path], ["review"], blank=True) == [("good",), ("",), ("bad",)]
    with pytest.raises(UserError, match="line 3: there is no text in 'review'"):
        read_texts([path], ["review"])
