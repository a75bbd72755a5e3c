"""Parts of text files hold each line once, whatever the ends of lines and blocks."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.bulk import cut_into_parts, parts
from qkv.data import read_lines
from qkv.errors import UserError

LINES = st.lists(st.sampled_from(["", "a", "爱", "long \u2028 line", "b\r"]), max_size=30)


@settings(max_examples=60, deadline=None)
@given(LINES, st.booleans(), st.integers(1, 9), st.integers(1, 40))
def test_parts_together_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ended: bool, size: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "lines.txt"
    path.write_bytes(("\n".join(lines) + ("\n" if ended else "")).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "BLOCK", block)
        found = cut_into_parts([path], size)
    assert [line for part in found for line in part.read()] == read_lines(path)
    assert all(part.n_lines == len(part.read()) for part in found)
    assert all(part.n_lines == size for part in found[:-1])


def test_parts_of_several_files_count_on(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("1\n2\n3\n")
    second.write_text("4\n5")
    found = cut_into_parts([first, second], 2)
    assert [(part.number, part.first, part.line, part.n_lines) for part in found] == [
        (0, 0, 1, 2),
        (1, 2, 3, 1),
        (2, 3, 1, 2),
    ]


def test_a_byte_that_is_not_utf_8_is_told_by_its_line_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\ntwo\nthree\nfo\xffur\n")
    with pytest.raises(UserError, match=r"lines.txt, line 4: byte 3 of the line \(0xff\)"):
        cut_into_parts([path], 3)[1].read()


def test_compressed_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt.gz"
    path.write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(UserError, match="decompress it first"):
        cut_into_parts([path], 3)
