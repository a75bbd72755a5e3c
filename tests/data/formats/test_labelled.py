"""Labelled texts."""

import json
from collections import Counter
from pathlib import Path

import pytest

from qkv.data.files import read_lines
from qkv.data.formats.labelled import Labelled, read_labelled, read_texts
from tests.data.helpers import complaint, write, write_parquet

LABELLED = [Labelled((" good film",), "yes"), Labelled(('a "bad", one',), "no")]
FORMS = {
    "a.tsv": 'label\ttext\nyes\t good film\n\n no \ta "bad", one\n',
    "a.jsonl": '{"text":" good film", "label":"yes"}\n{"label":"no", "text":"a \\"bad\\", one"}',
}


def test_all_formats_hold_the_same_examples_and_are_joined_in_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, text) for name, text in FORMS.items()]
    paths.append(tmp_path / "a.parquet")
    write_parquet(paths[-1], [{"text": one.texts[0], "label": one.label} for one in LABELLED])
    for path in paths:
        assert read_labelled(path) == LABELLED
        assert read_texts([str(path)]) == [example.texts for example in LABELLED]
    assert read_labelled(paths) == LABELLED * 3
    assert read_labelled([]) == []


@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        ("second\tlabel\tfirst\nb\tx\ta\n", {}, ("b", "a")),
        ("second\tlabel\tfirst\nb\tx\ta\n", {"text_field": ["first", "second"]}, ("a", "b")),
        ("second\tlabel\tfirst\nb\tx\ta\n", {"text_field": [-1]}, ("a",)),
        ("second\tlabel\tfirst\n \tx\t a\n", {}, ("", " a")),
        ("idx\tsentence\tlabel\n7\ta\tx\n", {}, ("a",)),
        ("idx\ttext\tmore\tlabel\n7\ta\tb\tx\n", {}, ("a",)),
        ("id\tstars\treview\n7\tx\ta\n", {"label_field": "stars"}, ("a",)),
        ("id\tstars\treview\n7\tx\ta\n", {"label_field": "stars", "text_field": ["id"]}, ("7",)),
        ("x\ta\nx\tb\n", {"label_field": 0}, ("a",)),
        ("a\tb\tx\n", {"label_field": "-1"}, ("a", "b")),
        ("text\tlabel\na\tx\n", {"label_field": 1, "text_field": [0]}, ("a",)),
    ],
)
def test_columns_are_found_by_name_and_number(
    tmp_path: Path, content: str, arguments: dict[str, object], expected: tuple[str, ...]
) -> None:
    path = write(tmp_path / "a.tsv", content)
    assert read_labelled(path, **arguments)[0] == Labelled(expected, "x")  # type: ignore[arg-type]
    assert read_texts(path, **arguments)[0] == expected  # type: ignore[arg-type]


def labels(path: Path, kind: str, *values: object) -> list[object]:
    lines = [json.dumps({"text": "a", "label": value}) for value in values]
    examples = read_labelled(write(path, "\n".join(lines)), kind)  # type: ignore[arg-type]
    return [example.label for example in examples]


def test_labels_are_classes_several_classes_or_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert labels(path, "class", 0, True, " 1 ", 2.5) == ["0", "true", "1", "2.5"]
    several = labels(path, "classes", ["a|b", 3], [], None, " b | a |b|", 4)
    assert several == [("a|b", "3"), (), (), ("b", "a"), ("4",)]
    assert labels(path, "number", 4, "0.5", "-1e-2") == [4.0, 0.5, -0.01]


def test_plain_text_is_a_text_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", " one\ttab\n\n二\r\n")
    assert read_texts(path) == [(" one\ttab",), ("二",)]
    pairs = write(tmp_path / "a.tsv", "one\ttwo\nthree\tfour\n")
    assert read_texts(pairs) == [("one", "two"), ("three", "four")]


@pytest.mark.parametrize(
    ("name", "content", "arguments", "sentence"),
    [
        (
            "a.tsv",
            "tag\ttext\nx\ty\n",
            {},
            "line 2: there is no field 'label' among 'tag', 'text';",
        ),
        ("a.tsv", "tag\ttext\nx\ty\n", {}, "name the right one as label_field under [data]."),
        ("a.tsv", "x\ty\n", {}, "line 1: there is no column 'label', and no header was recogn"),
        ("a.tsv", "label\ta\tb\tc\n1\tx\ty\tz\n", {}, "but there are 'a', 'b', 'c'; name one or t"),
        ("a.tsv", "label\n1\n", {}, "but there is none; name one or two as text_field under [data"),
        ("a.tsv", "label\ta\n1\tx\n", {"text_field": "b"}, "no field 'b' among 'label', 'a'; name"),
        ("a.tsv", "label\ta\n1\tx\n", {"text_field": "aaa"}, "one text, or a pair, but there are"),
        ("a.tsv", "label\ttext\n1\tx\n2\t \n", {}, "line 3: there is no text in 'text'; correct"),
        ("a.tsv", "label\ta\tb\n1\t\t \n", {}, "line 2: there is no text in 'a' or 'b'; correct"),
        ("a.tsv", "label\ttext\n\tx\n", {}, "line 2: the label 'label' is empty; add it, or"),
        ("a.tsv", "label\ttext\nnan\tx\n", {"kind": "number"}, 'holds "nan", but must be a number'),
        ("a.tsv", "label\ttext\n\tx\n", {"kind": "number"}, "2: the label 'label' holds \"\","),
        (
            "a.jsonl",
            '{"text": "a", "label": null}',
            {},
            "line 1: field 'label' holds null, but mu",
        ),
        ("a.jsonl", '{"text": "a", "label": [[1]]}', {"kind": "classes"}, "holds [1], but must be"),
        ("a.jsonl", '{"text": "a", "label": ["b"]}', {}, 'set kind = "classes" under [classify]'),
        ("a.jsonl", '{"text": 3, "label": "a"}', {}, "field 'text' holds 3, but must be a string"),
        ("a.jsonl", '{"text": "a", "label": true}', {"kind": "number"}, "holds true, but must be"),
        ("a.jsonl", '{"text": "a", "label": "\\ud800"}', {}, "holds half a surrogate pair"),
        ("a.jsonl", '{"a": "x", "label": 1}\n{"b": "x", "label": 1}', {}, "line 2: there is no f"),
    ],
)
def test_what_is_no_example_is_located(
    tmp_path: Path, name: str, content: str, arguments: dict[str, object], sentence: str
) -> None:
    assert sentence in complaint(read_labelled, write(tmp_path / name, content), **arguments)


def test_files_of_different_shape_do_not_mix(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "1.tsv", "label\tfirst\na\tx\n"),
        write(tmp_path / "2.tsv", "label\tfirst\tsecond\na\tx\ty\n"),
    ]
    for read in (read_labelled, read_texts):
        message = complaint(read, paths)
        assert "2.tsv: each record has 2 texts, but 1 in the file before; name those" in message
    assert len(read_labelled(paths, text_field=["first"])) == 2


def test_records_without_text_keep_their_places_where_they_may(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,review\n1,good\n2, \n3,bad\n")
    assert read_texts([path], ["review"], blank=True) == [("good",), ("",), ("bad",)]
    assert "line 3: there is no text in 'review'" in complaint(read_texts, path, ["review"])


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
    assert len(examples) == len(read_lines(shared_data / name)) - 1
    assert {len(example.texts) for example in examples} == {n_texts}
    assert all(text for example in examples for text in example.texts)
    assert counts is None or Counter(example.label for example in examples) == counts
