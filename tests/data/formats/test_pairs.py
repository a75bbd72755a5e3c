"""Sentence pairs: aligned files, and files with both sides."""

import json
from pathlib import Path

import pytest

from qkv.data import Pair, read_pairs
from tests.data.helpers import complaint, write, write_parquet

PAIRS = [("我爱你", "I love you"), (" 早", 'so "early", is it?'), ("三", "three")]
KINDS = [".tsv", ".csv", ".json", ".jsonl", ".parquet"]


def table(path: Path, rows: list[tuple[str, ...]], names: tuple[str, ...] = ()) -> Path:
    """Write rows as the file's name says; objects must have names."""
    records: list[dict[str, object]] = [dict(zip(names, row, strict=False)) for row in rows]
    kind = path.suffix
    if kind == ".parquet":
        return write_parquet(path, records)
    if kind in (".json", ".jsonl"):
        return write(path, "".join(json.dumps(record) + "\n" for record in records))
    if kind == ".csv":
        rows = [tuple('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    mark = "," if kind == ".csv" else "\t"
    return write(path, "".join(mark.join(row) + "\n" for row in ([names] if names else []) + rows))


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_taken_by_name_or_by_number(tmp_path: Path, kind: str) -> None:
    path = table(tmp_path / f"a{kind}", PAIRS, ("source", "target"))
    assert read_pairs(pairs=path) == read_pairs(pairs=[str(path)]) == PAIRS
    rows = [(str(number), target, source) for number, (source, target) in enumerate(PAIRS)]
    path = table(tmp_path / f"a{kind}", rows, ("id", "english", "chinese"))
    assert read_pairs((), (), path, "chinese", "english") == PAIRS
    if "json" not in kind:
        assert read_pairs((), (), path, "2", "english") == PAIRS
    if kind in (".tsv", ".csv"):
        path = table(path, rows)
        assert read_pairs((), (), path, -1, 1) == read_pairs((), (), path, "2", "-2") == PAIRS


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_nested_fields_are_named_with_dots(tmp_path: Path, kind: str) -> None:
    records: list[dict[str, object]] = [
        {"translation": {"en": target, "zh": source}} for source, target in PAIRS
    ]
    path = tmp_path / f"a{kind}"
    if kind == ".parquet":
        write_parquet(path, records)
    else:
        write(path, "\n".join(map(json.dumps, records)))
    assert read_pairs((), (), path, "translation.zh", "translation.en") == PAIRS
    assert "like 'en' and 'de', or 'translation.en'" in complaint(read_pairs, pairs=path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("一\tone\n1\t2\n", [("一", "one"), ("1", "2")]),
        ("en\tzh\none\t一\n", [("one", "一")]),
        ("Source\tTARGET\n一\tone\n", [("一", "one")]),
        ("tgt\tid\tsrc\none\t1\t一\n", [("一", "one")]),
        ("Hi.\t嗨。\tCC-BY 2.0\r\n\nRun.\t跑。\t\n", [("Hi.", "嗨。"), ("Run.", "跑。")]),
        ("1\t一\t0.5\nx\ty\tz\n", [("1", "一"), ("x", "y")]),
        (" 一 \tone\n  \ttwo\n", [(" 一 ", "one"), ("", "two")]),
    ],
)
@pytest.mark.parametrize("name", ["a.tsv", "cmn.txt"])
def test_two_columns_are_found_where_none_are_named(
    tmp_path: Path, name: str, content: str, expected: list[Pair]
) -> None:
    assert read_pairs(pairs=write(tmp_path / name, content)) == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("id\ten\tde\n1\ta\tb\n", "line 2: the columns are 'id', 'en', 'de', which does not say"),
        ("id\ten\n1\ta\n", "name the two sides as source_field and target_field under [data], li"),
        ("12\ta\tb\n13\tc\td\n", "line 1: the first of 3 columns holds numbers, which are no text"),
        ("一\tone\n\n三 three\n", "line 3: the number of columns is 1, but 2 in the first row;"),
        ("一\tone\n二\tthe\ttab\n", "line 2: the number of columns is 3, but 2 in the first row"),
        ("一 one\n", "line 1: there is one column alone; each row must hold the source and the"),
        ("source\ttarget\n", "There is no record in "),
    ],
)
def test_a_table_that_leaves_doubt_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    assert sentence in complaint(read_pairs, pairs=write(tmp_path / "a.tsv", content))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"source": "二", "tgt": "two"}', "no field 'target' among 'source', 'tgt'; name the r"),
        ('{"source": "二", "target": 2}', "field 'target' holds 2, but must be a string; corre"),
        ('{"source": null, "target": "two"}', "field 'source' holds null"),
        ('{"source": "\\ud83d", "target": "two"}', "surrogate"),
    ],
)
def test_a_record_that_holds_no_pair_is_located(tmp_path: Path, line: str, words: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"source": "一", "target": "\\ud83d\\ude00"}\n')
    assert read_pairs(pairs=path) == [("一", "😀")]
    message = complaint(read_pairs, pairs=write(path, path.read_text() + line))
    assert message.startswith(f"{path}, line 2: ")
    assert words in message


def test_a_record_of_one_field_is_shown_what_a_pair_looks_like(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"messages": "Hi"}\n')
    assert complaint(read_pairs, pairs=path) == (
        f"{path}, line 1: there is one column alone, 'messages'; each row must hold the source and "
        'the target, like {"source": "…", "target": "…"}.'
    )


def test_fields_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "一\tone\n")
    message = complaint(read_pairs, (), (), path, "zh", "en")
    assert (
        "line 1: there is no column 'zh', and no header was recognised in '一', 'one'; if"
        in message
    )
    assert "go together; name both, or none" in complaint(read_pairs, pairs=path, target_field=0)


def test_a_table_is_no_side_of_line_aligned_files(tmp_path: Path) -> None:
    table = write(tmp_path / "a.CSV", "en,de\none,eins\n")
    assert f"{table} is a table by its name" in complaint(read_pairs, table, table)


def test_many_files_of_all_kinds_are_joined_in_order(tmp_path: Path) -> None:
    sources = [write(tmp_path / "1.zh", " 一\n"), write(tmp_path / "2.zh.gz", " \n二\r\n")]
    targets = [write(tmp_path / "1.en", "one\n"), write(tmp_path / "2.en", "blank\ntwo ")]
    write(tmp_path / "3.tsv", "三\tthree\n")
    table(tmp_path / "4.csv", [("四", "four")])
    pairs = read_pairs(sources, targets, tmp_path / "[34].*")
    numbered = [("三", "three"), ("四", "four")]
    assert pairs == [(" 一", "one"), ("", "blank"), ("二", "two "), *numbered]


def test_files_and_settings_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.zh", "一\n二\n三\n"), write(tmp_path / "a.en", "one\ntwo")
    message = complaint(read_pairs, source, target)
    assert message.startswith(f"{source} has 3 lines but {target} has 2; line-aligned files")
    write(source, ""), write(target, "")
    assert f"There is no text in {source}, {target};" in complaint(read_pairs, source, target)
    message = complaint(read_pairs, source="a", prefix="valid_")
    assert "valid_source is given without valid_target" in message
    assert "target is given without source" in complaint(read_pairs, target="a")
    assert "2 files but target names 1" in complaint(read_pairs, ["a", "b"], ["c"])
    assert f"There is no file {tmp_path / 'no'}" in complaint(read_pairs, pairs=tmp_path / "no")
    assert read_pairs() == []
