import gzip
import json
import re
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from qkv.data.documents import PIECE, SAFE_CUTS, Piece, cut

from qkv.config import DataConfig, TokenizerConfig
from qkv.data import documents as module
from qkv.data import read_documents, sample_text
from qkv.errors import UserError
from qkv.text import Tokenizer, train_tokenizer

KINDS = ["bpe", "unigram", "wordpiece", "char", "byte"]
LINES = [
    "The cat's on the mat, and the dog sat on the log.\n",
    "What? No! In 2017 or 1984; so...\n\n",
    "Die Straße ist schön: 我爱你，中国。你爱我吗？不爱！\n",
    "Über l’homme — don't <eos> ## 👍 é é\tx\n",
]
# Whatever runs are made of: letters, joiners, digits, marks, symbols, spaces, scripts without any
ALPHABET = "ab Z é\u0301ß’'\u200d017⑴#<.,.;:!?…—_👍$\n\n\t  \u2028\u00a0我爱你。，！ー한\u0627"


@pytest.fixture(scope="session")
def tokenizer() -> Callable[..., Tokenizer]:
    made: dict[Any, Tokenizer] = {}

    def of(kind: str, **more: Any) -> Tokenizer:
        key = kind, *sorted(more.items())
        if key not in made:
            config = TokenizerConfig(kind=kind, vocab_size=400, **more)  # type: ignore[arg-type]
            made[key] = train_tokenizer(["".join(LINES)] * 3, config)
        return made[key]

    return of


def joined(pieces: Iterable[Piece]) -> list[str]:
    """Whole documents, put together from pieces that must come in order."""
    found: list[str] = []
    inside = False
    for piece in pieces:
        assert piece.starts is not inside
        found += [""] * piece.starts
        found[-1] += piece.text
        inside = not piece.ends
    assert not inside
    return found


def texts(paths: Any, **settings: Any) -> list[str]:
    return joined(read_documents(paths, DataConfig(**settings)))


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def complaint(paths: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        texts(paths, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.fixture(params=[1, 2, 3, 7, 1 << 18])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes read at a time: what is found must not depend on them."""
    monkeypatch.setattr("qkv.data.documents.CHUNK", request.param)
    return int(request.param)


def test_a_document_is_a_file_a_paragraph_or_a_line(tmp_path: Path, chunk: int) -> None:
    whole = "\n \none\n two\n\n\t\n  \n three\u2028\n\nfour\r5\n"
    path = write(tmp_path / "a.txt", "\ufeff" + whole.replace("\n", "\r\n"))
    assert texts([path]) == [whole]
    assert texts([path], documents="paragraph") == ["one\n two", " three\u2028", "four\r5"]
    assert texts([path], documents="line") == ["one", " two", " three\u2028", "four\r5"]


@pytest.mark.parametrize("size", [5, 100])
@given(st.text("ab \n\n\r\t", max_size=60), st.integers(1, 5))
def test_documents_are_what_a_plain_reading_finds(size: int, text: str, n_bytes: int) -> None:
    assume(not re.search(r"\s{5}", text))  # no blank goes on for longer than a piece
    plain = text.replace("\r\n", "\n")
    lines = plain.split("\n")
    runs = ("\n".join(run) for full, run in groupby(lines, lambda line: bool(line.strip())) if full)
    expected = {
        "file": [plain] if plain.strip() else [],
        "paragraph": list(runs),
        "line": [line for line in lines if line.strip()],
    }
    chunks = [text[start : start + n_bytes] for start in range(0, len(text), n_bytes)]
    for kind, whole in expected.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "cut", lambda text: cut(text, size))
            assert joined(module._from_text(module._unix_lines(chunks), kind)) == whole


def test_an_object_a_line_has_its_text_in_a_field_or_a_template(tmp_path: Path, chunk: int) -> None:
    records = [
        {"text": "a\n\nb", "title": "A", "n": ["1", "2"]},
        {"text": "爱", "title": "B", "n": []},
    ]
    lines = "\r\n\n".join(json.dumps(record) for record in records)
    for name in ("a.jsonl", "a.json", "a.jsonl.gz"):
        path = write(tmp_path / name, lines)
        assert texts([path], documents="line") == ["a\n\nb", "爱"]
        assert texts([path], text_field="title") == ["A", "B"]
        assert texts([path], template="{title}: {n}") == ["A: 1\n2", "B: "]


def test_folders_and_patterns_stand_for_their_files_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt.gz", "sub/c.txt", "sub/deep/d.txt", "e.md", ".hidden.txt"):
        write(tmp_path / name, name)
    write(tmp_path / "f.jsonl", json.dumps({"text": "f.jsonl"}))
    everything = ["a.txt.gz", "b.txt", "f.jsonl", "sub/c.txt", "sub/deep/d.txt"]
    assert texts(tmp_path) == texts(str(tmp_path)) == everything
    assert texts([tmp_path / "*.txt"]) == ["b.txt"]
    assert texts([f"{tmp_path}/**/*.txt"]) == ["b.txt", "sub/c.txt", "sub/deep/d.txt"]
    assert texts([tmp_path / "*"])[-3:] == ["f.jsonl", "sub/c.txt", "sub/deep/d.txt"]
    assert texts([tmp_path / "e.md", tmp_path / "b.txt"]) == ["e.md", "b.txt"]
    odd = write(tmp_path / "odd[1]*.txt", "odd")  # a name that looks like a pattern
    assert texts([odd]) == ["odd"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "nowhere")
    for name in ("none.txt", "*.none", "link.txt", "folder/*"):
        assert f"There is no file {tmp_path / name}" in complaint([tmp_path / name])
    message = complaint([tmp_path / "folder"])
    assert f"There is no .txt, .jsonl, .gz file in {tmp_path / 'folder'}" in message


@pytest.mark.parametrize("content", ["", "\ufeff", " \n\n\t\r\n"])
def test_files_without_text_are_named(tmp_path: Path, content: str) -> None:
    paths = [write(tmp_path / "a.txt", content), write(tmp_path / "b.txt.gz", content)]
    for kind in ("file", "paragraph", "line"):
        assert f"There is no text in {paths[0]}, {paths[1]};" in complaint(paths, documents=kind)
    objects = write(tmp_path / "a.jsonl", '{"text": " "}\n')
    assert "There is no text in" in complaint(objects)
    full = write(tmp_path / "c.txt", "c")
    assert texts([*paths, full]) == ["c"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_bytes_that_are_not_utf8_are_located(tmp_path: Path, chunk: int, name: str) -> None:
    path = write(tmp_path / name, '\ufeff{"text": "爱"}\n\nab'.encode() + b"\xb6\xfe\ncd")
    assert complaint([path]).startswith(f"{path}, line 3: byte 3 of the line (0xb6) is not UTF-8;")
    path = write(tmp_path / name, b'{"text": "x"}\n' + "爱爱".encode()[:-1])
    assert f"{path}, line 2: byte 4 of the line (0xe7) is not UTF-8;" in complaint([path])


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    content = gzip.compress("\n".join(map(str, range(50_000))).encode())
    for name, bad in {"cut": content[:-9], "short": content[:5], "plain": b"plain text"}.items():
        path = tmp_path / f"{name}.txt.gz"
        path.write_bytes(bad)
        assert str(path) in complaint([path])
    assert "truncated" in complaint([tmp_path / "cut.txt.gz"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": ', "not valid JSON"),
        ('["text"]', """no object; each line must look like {"text": "…"}"""),
        ('{"body": "x"}', "no field 'text' among 'body'; name the right one as text_field"),
        ('{"text": 3}', "field 'text' holds 3, but must be a string"),
        ('{"text": "\\ud83d"}', "surrogate"),
    ],
)
def test_a_line_that_holds_no_document_is_located(tmp_path: Path, line: str, words: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\n\n' + line + "\n")
    message = complaint([path])
    assert message.startswith(f"{path}, line 3: ")
    assert words in message
    assert f"{path}, line 1: " in complaint([path], template="{title}")


def test_a_long_document_comes_in_pieces_and_the_file_is_read_as_they_are_asked_for(
    tmp_path: Path,
) -> None:
    lines = "".join(f"line {number} of a long text\n" for number in range(60_000))
    objects = write(tmp_path / "a.jsonl", json.dumps({"text": lines}))
    path = write(tmp_path / "a.txt", lines)
    for file in (path, objects):
        pieces = list(read_documents([file], DataConfig()))
        assert "".join(piece.text for piece in pieces) == lines
        assert all(PIECE <= len(piece.text) <= 2 * PIECE for piece in pieces[:-1])
        assert all(piece.text.startswith("\nline") for piece in pieces[1:])
        assert [piece.starts for piece in pieces] == [True] + [False] * (len(pieces) - 1)
        assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    told: list[int] = []
    reading = read_documents([path], DataConfig(), told.append)
    next(reading)
    assert sum(told) < len(lines) / 4
    list(reading)
    assert sum(told) == path.stat().st_size


def test_bytes_told_of_are_those_of_the_compressed_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", "".join(f"{number}\n" for number in range(200_000)))
    told: list[int] = []
    list(read_documents([path], DataConfig(), told.append))
    assert len(told) > 3
    assert sum(told) == path.stat().st_size


@settings(max_examples=200)
@given(st.text(ALPHABET, max_size=30))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [{}, {"normalize": "nfkc", "lowercase": True}])
def test_a_cut_at_a_safe_place_changes_no_token(
    tokenizer: Callable[..., Tokenizer], kind: str, more: dict[str, Any], text: str
) -> None:
    assume(not more or "⑴" not in text)  # NFKC makes "(1)" of it, and its bracket is punctuation
    encode = tokenizer(kind, **more).encode
    whole = encode(text)
    for pattern in SAFE_CUTS:
        for found in pattern.finditer(text):
            place = found.start()
            assert encode(text[:place]) + encode(text[place:]) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_a_document_have_the_tokens_of_the_whole(
    tmp_path: Path, tokenizer: Callable[..., Tokenizer], kind: str
) -> None:
    with_lines = "".join(LINES) * 1200
    without = " ".join(line.strip() for line in LINES) * 1200
    for text in (with_lines, without):
        pieces = list(read_documents([write(tmp_path / "a.txt", text)], DataConfig()))
        assert len(pieces) > 1
        found = [id for piece in pieces for id in tokenizer(kind).encode(piece.text)]
        assert found == tokenizer(kind).encode(text)


def test_a_text_without_any_safe_place_is_cut_all_the_same() -> None:
    words, blob, blank = "word " * 300, "x" * 1000, "\n " * 500
    for text in (words, blob, blank):
        parts = cut(text, 50)
        assert "".join(parts) == text
        assert all(50 <= len(part) <= 200 for part in parts[:-1])
        assert len(parts[-1]) < 200
    assert all(part.startswith(" word") for part in cut(words, 50)[1:])
    late = "x" * 120 + "\n" + "y" * 100  # a safe place is waited for
    assert cut(late, 50) == ["x" * 120, "\n" + "y" * 100]


def read_sample(paths: Any, most: int, **settings: Any) -> list[str]:
    return list(sample_text(paths, DataConfig(**settings), most))


def test_a_sample_comes_from_all_over_the_files(tmp_path: Path) -> None:
    random = Random(0)
    paths = [
        write(tmp_path / name, "".join(random.choices(name[0] + "123456789 \n", k=200_000)))
        for name in ("a.txt", "b.txt.gz", "c.txt", "d.txt.gz")
    ]
    for most in (200_000, 40_000, 999):
        found = read_sample(paths, most)
        text = "".join(found)
        assert 0.8 * most <= len(text) <= most
        assert all(text.count(mark) > 0.05 * most / 12 for mark in "abcd")
        assert all(len(part) <= max(4 * 4096, most // 16) for part in found)
        assert found == read_sample(paths, most)


def test_a_sample_of_one_file_has_its_end_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "".join(f"{number}\n" for number in range(200_000)))
    numbers = [int(word) for word in "".join(read_sample([path], 100_000)).split()]
    assert min(numbers) < 20_000
    assert max(numbers) > 170_000


def test_a_sample_of_a_small_text_is_all_of_it(tmp_path: Path) -> None:
    text = "".join(LINES) * 50
    path = write(tmp_path / "a.txt", text)
    assert "".join(read_sample([path], len(text.encode()))) == text
    zipped = write(tmp_path / "a.txt.gz", text)
    assert "".join(read_sample([zipped], 10 * len(text))) == text
    lines = read_sample([path], 10 * len(text), documents="line")
    assert lines == [line for line in text.split("\n") if line]


def test_a_table_gives_the_column_that_is_named(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", "label\ttext\ngood\ta fine film\n\nbad\tno wit\n")
    assert texts([table]) == ["a fine film", "no wit"]
    assert texts([table], text_field="label") == ["good", "bad"]
    assert texts([table], template="{text} is {label}") == ["a fine film is good", "no wit is bad"]
    assert "line 2: there is no field 'body' among 'label', 'text'" in complaint(
        [table], text_field="body"
    )
