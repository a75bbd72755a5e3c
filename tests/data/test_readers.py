import gzip
import json
from pathlib import Path

import pytest

from qkv.data import read_lines, read_pairs
from qkv.errors import UserError


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\u2028still one\r\ntwo\x85\x0b\x0c\x1c still\rtwo\n\nfour")
    assert read_lines(path) == ["one\u2028still one", "two\x85\x0b\x0c\x1c still\rtwo", "", "four"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path / "a.txt", "\ufeff我爱你\n")) == ["我爱你"]


def test_a_final_line_feed_starts_no_line(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path / "a", "x\ny\n")) == read_lines(write(tmp_path / "b", "x\ny"))
    assert read_lines(write(tmp_path / "empty", "")) == []


def test_compressed_and_plain_text_read_the_same(tmp_path: Path) -> None:
    text = "我爱你。\r\n早上好！\n"
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert read_lines(tmp_path / "a.txt.gz") == read_lines(write(tmp_path / "a.txt", text))


def test_many_files_of_all_kinds_are_joined_in_order(tmp_path: Path) -> None:
    sources = [write(tmp_path / "1.zh", "一\n"), write(tmp_path / "2.zh", "二\n")]
    targets = [write(tmp_path / "1.en", "one\n"), write(tmp_path / "2.en", "two\n")]
    tsv = write(tmp_path / "3.tsv", "三\tthree\n")
    (tmp_path / "4.jsonl.gz").write_bytes(
        gzip.compress(json.dumps({"zh": "四", "en": "four", "id": 4}).encode())
    )
    pairs = read_pairs(sources, targets, [tsv, tmp_path / "4.jsonl.gz"], "zh", "en")
    assert pairs == [("一", "one"), ("二", "two"), ("三", "three"), ("四", "four")]


def test_a_single_name_is_one_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "一\tone\n")
    assert read_pairs(pairs=str(path)) == read_pairs(pairs=path) == [("一", "one")]


def test_further_columns_and_blank_lines_of_a_table_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "cmn.txt", "Hi.\t嗨。\tCC-BY 2.0 #538123\r\n\nRun.\t跑。\n")
    assert read_pairs(pairs=[path]) == [("Hi.", "嗨。"), ("Run.", "跑。")]


def test_spaces_around_a_sentence_are_dropped_but_empty_sides_stay_aligned(tmp_path: Path) -> None:
    source, target = (
        write(tmp_path / "a.zh", " 一 \n  \n三\n"),
        write(tmp_path / "a.en", "1\n2\n3\n"),
    )
    assert read_pairs([source], [target]) == [("一", "1"), ("", "2"), ("三", "3")]


def complaint(**arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        read_pairs(**arguments)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.tsv") in complaint(pairs=[tmp_path / "none.tsv"])


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    message = complaint(pairs=[tmp_path])
    assert str(tmp_path) in message
    assert "directory" in message


def test_unequal_files_are_named_with_their_counts(tmp_path: Path) -> None:
    source, target = (
        write(tmp_path / "a.zh", "一\n二\n三\n"),
        write(tmp_path / "a.en", "one\ntwo\n"),
    )
    message = complaint(source=[source], target=[target])
    assert f"{source} has 3 lines" in message
    assert f"{target} has 2" in message


def test_bytes_that_are_not_utf8_are_located(tmp_path: Path) -> None:
    path = tmp_path / "gbk.tsv"
    path.write_bytes("一\tone\nab".encode() + "二".encode("gbk") + b"\ttwo\n")
    message = complaint(pairs=[path])
    assert f"{path}, line 2: byte 3 of the line (0xb6)" in message
    assert "UTF-8" in message


def test_utf8_cut_in_the_middle_of_a_character_is_located(tmp_path: Path) -> None:
    path = tmp_path / "cut.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + "一\tone\n二".encode()[:-1])
    assert f"{path}, line 2: byte 1 of the line (0xe4)" in complaint(pairs=[path])


@pytest.mark.parametrize("kept", [5, 15, -20, -9, -1])
def test_a_truncated_gzip_file_is_named(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.tsv.gz"
    content = "".join(f"{number}\t{number * number}\n" for number in range(200))
    path.write_bytes(gzip.compress(content.encode())[:kept])
    message = complaint(pairs=[path])
    assert str(path) in message
    assert "truncated" in message


@pytest.mark.parametrize("damage", ["plain text", "damaged middle"])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.tsv.gz"
    content = bytearray(gzip.compress(b"a\tb\n" * 50))
    content[12:16] = b"\xff\xff\xff\xff"
    path.write_bytes(b"a\tb\n" if damage == "plain text" else bytes(content))
    assert str(path) in complaint(pairs=[path])


def test_a_table_line_without_a_tab_is_located(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "一\tone\n\n三 three\n")
    message = complaint(pairs=[path])
    assert f"{path}, line 3" in message
    assert "tab" in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"source": "二", ', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('["二", "two"]', "no object"),
        ('{"source": "二", "tgt": "two"}', "no field 'target' among 'source', 'tgt'"),
        ("{}", "no field 'source'"),
        ('{"source": "二", "target": 2}', "field 'target' holds 2"),
        ('{"source": null, "target": "two"}', "field 'source' holds null"),
        ('{"source": "\\ud83d", "target": "two"}', "surrogate"),
    ],
)
def test_a_jsonl_line_that_holds_no_pair_is_located(tmp_path: Path, line: str, words: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"source": "一", "target": "one"}\n' + line + "\n")
    message = complaint(pairs=[path])
    assert message.startswith(f"{path}, line 2: ")
    assert words in message


def test_a_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"source": "\\ud83d\\ude00", "target": "smile"}\n')
    assert read_pairs(pairs=[path]) == [("😀", "smile")]


def test_an_empty_corpus_is_named(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.zh", ""), write(tmp_path / "a.en", "")
    message = complaint(source=[source], target=[target])
    assert str(source) in message
    assert str(target) in message


def test_settings_that_do_not_go_together_are_named() -> None:
    assert "valid_source is given without valid_target" in complaint(source=["a"], name="valid_")
    assert "target is given without source" in complaint(target=["a"])
    assert "2 files but target names 1" in complaint(source=["a", "b"], target=["c"])
    assert "no text is given" in complaint()
