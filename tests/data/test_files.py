"""Finding, opening and decoding files."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import files
from qkv.data.files import chunks, kind_of, lines, lines_in, text_files
from qkv.data.formats.records import read_records
from qkv.errors import UserError
from tests.data.helpers import COMPRESSED, complaint, compress, write


class Trickle(io.BytesIO):
    """A pipe that hands out few bytes at a time."""

    def __init__(self, content: bytes, n_bytes: int) -> None:
        super().__init__(content)
        self.n_bytes = n_bytes

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(self.n_bytes)


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\u2028still one\r\ntwo\x85\x0b\x0c\x1c still\rtwo\n\nfour")
    assert list(lines(path)) == ["one\u2028still one", "two\x85\x0b\x0c\x1c still\rtwo", "", "four"]
    assert list(lines(write(path, "x\ny\n"))) == list(lines(write(path, "x\ny"))) == ["x", "y"]
    assert list(lines(write(path, ""))) == []


@pytest.mark.parametrize("end", COMPRESSED)
def test_compressed_and_plain_text_are_the_same_lines_and_chunks(tmp_path: Path, end: str) -> None:
    text = "\ufeff我爱你。\r\n早上好！\n" + "x\r" * 100_000
    path = write(tmp_path / f"a.txt{end}", text)
    assert list(lines(path)) == ["我爱你。", "早上好！", "x\r" * 100_000]
    assert "".join(chunks(path)) == text[1:].replace("\r\n", "\n")
    n_bytes: list[int] = []
    reading = chunks(path, n_bytes.append)
    next(reading)
    assert end or sum(n_bytes) < path.stat().st_size  # read as it is asked for
    list(reading)
    assert sum(n_bytes) == path.stat().st_size
    assert kind_of(path) == kind_of(tmp_path / f"B.TXT{end.upper()}") == ".txt"


@given(st.text("a爱\r\n\ufeff", max_size=20), st.integers(1, 5))
def test_lines_do_not_depend_on_how_many_bytes_come_at_a_time(text: str, n_bytes: int) -> None:
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    expected = plain.removesuffix("\n").split("\n") if plain else []
    assert list(lines_in(Trickle(text.encode(), n_bytes), "a")) == expected or "\ufeff" * 2 in text


def test_a_line_is_there_as_soon_as_it_is_written() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as file, open(writer, "wb", buffering=0) as pipe:  # noqa: PTH123
        typed = lines_in(file, "standard input")
        for line in ("one", "two"):
            pipe.write(f"{line}\n".encode())
            assert next(typed) == line


@pytest.mark.parametrize("n_bytes", [1, 3, 1000])
@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("爱".encode("utf-16"), "line 1: byte 1 of the line (0xff)"),
        ("\ufeff爱\r\n\nab".encode() + b"\xb6\xfe\ncd", "line 3: byte 3 of the line (0xb6)"),
        ("\ufeffx\n爱爱".encode()[:-1], "line 2: byte 4 of the line (0xe7)"),
    ],
)
def test_bytes_that_are_not_utf8_are_located(content: bytes, where: str, n_bytes: int) -> None:
    message = complaint(lines_in, Trickle(content, n_bytes), "a.txt")
    way_out = (
        "UTF-16 -t UTF-8`" if "0xff" in where else "ENCODING -t UTF-8` (often GB18030, or CP1252)"
    )
    assert message == f"a.txt, {where} is not UTF-8; convert it first, with `iconv -f {way_out}."


@pytest.mark.parametrize("content", [compress(b"text", ".gz"), b"PK\x03\x04\x14\0\x06\xff"])
def test_a_file_of_another_kind_is_no_text_of_another_encoding(content: bytes) -> None:
    message = complaint(lines_in, io.BytesIO(content), "a.csv")
    assert message.startswith("a.csv holds no text") and "iconv" not in message


@pytest.mark.parametrize("end", COMPRESSED[1:])
def test_damaged_compressed_files_are_named(tmp_path: Path, end: str) -> None:
    whole = compress("\n".join(map(str, range(50_000))).encode(), end)
    path = tmp_path / f"a.txt{end}"
    middle = len(whole) // 2
    damaged = [b"plain text", *(whole[:kept] for kept in (5, 15, middle, -9, -1))]
    if end != ".zst":  # which has no checksum by default
        damaged.append(whole[:middle] + bytes(50) + whole[middle + 50 :])
    for content in damaged:
        path.write_bytes(content)
        message = complaint(lines, path)
        assert message.startswith(f"{path} is truncated or damaged, or no {end} file at all; fetch")


def test_files_that_cannot_be_read_are_named_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        complaint(lines, tmp_path / "no") == f"There is no file {tmp_path / 'no'}; check the path."
    )
    assert f"{tmp_path} is a directory; name the file in it." == complaint(lines, tmp_path)
    too_long = tmp_path / ("x" * 300)
    assert "cannot be read (File name too long); copy it to" in complaint(lines, too_long)
    for name in ("compression.zstd", "backports.zstd", "pyzstd"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.zst").touch()
    assert 'needs backports.zstd; run: pip install "qkv[zst]".' in complaint(
        lines, tmp_path / "a.zst"
    )


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "x")
    path.chmod(0)
    assert "may not be read; change its permissions" in complaint(lines, path)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_pipe_is_read_once(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"pipe.txt{end}"
    os.mkfifo(path)
    writing = threading.Thread(target=path.write_bytes, args=[compress("我\nx".encode(), end)])
    writing.start()
    assert list(lines(path)) == ["我", "x"]
    writing.join()


def test_folders_and_patterns_stand_for_their_files_in_order(tmp_path: Path) -> None:
    names = ["a.txt.gz", "b.txt", "e.md", "f.jsonl", "sub/c.txt", "sub/deep/d.txt", ".hidden.txt"]
    for name in names:
        write(tmp_path / name, name)
    odd = write(tmp_path / "odd[1]*.txt", "odd")  # a name that looks like a pattern

    def matching(*paths: str) -> list[str]:
        files = text_files([tmp_path / path for path in paths])
        return [str(file.relative_to(tmp_path)) for file in files]

    assert text_files(str(odd)) == text_files(odd) == [odd]
    odd.unlink()
    assert matching(".") == ["a.txt.gz", "b.txt", "f.jsonl", "sub/c.txt", "sub/deep/d.txt"]
    assert matching("*.txt") == ["b.txt"]
    assert matching("**/*.txt") == ["b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert matching("*")[-3:] == ["f.jsonl", "sub/c.txt", "sub/deep/d.txt"]
    assert matching("e.md", "b.txt") == ["e.md", "b.txt"]
    (tmp_path / "link.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    for name in ("none.txt", "*.none", "link.txt", "folder/*"):
        assert f"There is no file {tmp_path / name}; check" in complaint(
            text_files, tmp_path / name
        )
    assert complaint(text_files, ["a.txt", ""]).startswith("The name of a file is empty;")
    message = complaint(text_files, tmp_path / "folder")
    assert message.startswith("There is no .txt, .jsonl, .parquet, .gz, .xz, .zst file in ")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_small_file_that_expands_to_much_is_refused_and_never_held(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_EXPANDED", 1 << 23)
    for name, content in (("text.txt", b"\0"), ("pairs.tsv", b"a\tb\n"), ("records.jsonl", b"[")):
        path = tmp_path / f"{name}{suffix}"
        part = compress(content * ((1 << 20) // len(content)), suffix)
        path.write_bytes(part * 32 if suffix == ".gz" else part * 512)  # 512 MiB
        n_read, most = 0, max(1 << 23, 250 * path.stat().st_size)
        with pytest.raises(UserError, match=rf"{name}{suffix} expands to more than 250 times"):
            for text in chunks(path):
                n_read += len(text)
        assert n_read <= most < (1 << 20) * 128
    with pytest.raises(UserError, match="expands to more than"):
        list(read_records(path))


def test_text_that_compresses_well_is_read(tmp_path: Path) -> None:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(compress(b"a line like all others\n" * 500_000, ".gz"))
    assert sum(map(len, chunks(path))) == 11_500_000
