"""Tables as plain text."""

from __future__ import annotations

from rich.cells import cell_len

from qkv_labs.printed import table_lines, wrap


def test_a_narrow_table_stays_one() -> None:
    lines = table_lines(("name", "a long heading"), (("x", "1.0 ± 0.2"), ("longer", "2")))
    assert lines == [
        "name    a long heading",
        "──────  ──────────────",
        "x       1.0 ± 0.2",
        "longer  2",
        "",
    ]


def test_headings_take_several_lines_where_the_table_would_be_too_wide() -> None:
    lines = table_lines(
        ("name", "a long heading", "损失减半所需步数"), (("x", "1", "2"),), width=30
    )
    assert lines == [
        "name  a long    损失减半",
        "      heading   所需步数",
        "────  ────────  ────────",
        "x     1         2",
        "",
    ]


def test_a_wide_table_is_split_and_repeats_its_first_column() -> None:
    rows = [[f"row {row}", *(f"{row}{column}" * 5 for column in range(6))] for row in range(2)]
    lines = table_lines(["name", *"abcdef"], rows, width=40)
    assert max(map(cell_len, lines)) <= 40
    assert sum(line.startswith("row 1") for line in lines) == 3
    assert all(any(cell in line for line in lines) for row in rows for cell in row)


def test_long_cells_go_on_below() -> None:
    lines = table_lines(("a", "b"), (("x", "word " * 10),), width=20)
    assert max(map(cell_len, lines)) <= 20
    assert " ".join(lines).count("word") == 10


def test_chinese_breaks_between_characters_and_english_between_words() -> None:
    assert wrap("损失减半所需步数", 8) == ["损失减半", "所需步数"]
    assert wrap("two words", 5) == ["two", "words"]


def test_a_split_table_repeats_all_columns_that_tell_its_rows_apart() -> None:
    rows = [
        [way, size, f"{way}{size} {'x' * 9}", f"{size}{way} {'y' * 9}"]
        for way in "ab"
        for size in ("16", "32")
    ]
    lines = table_lines(["way", "T", "first", "second"], rows, width=24)
    assert max(map(cell_len, lines)) <= 24
    assert [line for line in lines if "y" in line and "way" not in line] == [
        f"{way}    {size}  {size}{way} {'y' * 9}" for way, size, *_ in rows
    ]
    alike = table_lines(["way", "first", "second"], [["a", "x" * 12, "y" * 12]] * 2, width=20)
    assert max(map(cell_len, alike)) <= 20
