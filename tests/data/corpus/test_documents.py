"""Documents from files, a piece at a time."""

import json
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qkv.config import DataConfig, TokenizerConfig
from qkv.data import read_documents
from qkv.data.corpus.documents import PIECE, SAFE_CUTS, Piece, cut, documents_in
from qkv.text import Tokenizer, train_tokenizer
from tests.data.helpers import complaint, write, write_parquet

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
    @cache
    def of(kind: str, **more: Any) -> Tokenizer:
        config = TokenizerConfig(kind=kind, vocab_size=400, **more)  # type: ignore[arg-type]
        return train_tokenizer(["".join(LINES)] * 3, config)

    return of


def joined(pieces: Iterable[Piece]) -> list[str]:
    """Whole documents, put together from pieces that must come in order."""
    documents: list[str] = []
    inside = False
    for piece in pieces:
        assert piece.starts is not inside
        documents += [""] * piece.starts
        documents[-1] += piece.text
        inside = not piece.ends
    assert not inside
    return documents


def texts(paths: Any, **settings: Any) -> list[str]:
    return joined(read_documents(paths, DataConfig(**settings)))


def test_a_document_is_a_file_a_paragraph_or_a_line(tmp_path: Path) -> None:
    whole = "\n \none\n two\n\n\t\n  \n three\u2028\n\nfour\r5\n"
    path = write(tmp_path / "a.txt", "\ufeff" + whole.replace("\n", "\r\n"))
    assert texts([path]) == [whole]
    assert texts([path], documents="paragraph") == ["one\n two", " three\u2028", "four\r5"]
    assert texts([path], documents="line") == ["one", " two", " three\u2028", "four\r5"]


@pytest.mark.parametrize("size", [5, 100])
@given(st.text("ab \n\n\t", max_size=60), st.integers(1, 5))
def test_documents_are_what_a_plain_reading_finds(size: int, text: str, n: int) -> None:
    assume(not re.search(r"\s{5}", text))  # no blank goes on for longer than a piece
    lines = text.split("\n")
    runs = ("\n".join(run) for full, run in groupby(lines, lambda line: bool(line.strip())) if full)
    expected: dict[Literal["file", "paragraph", "line"], list[str]] = {
        "file": [text] if text.strip() else [],
        "paragraph": list(runs),
        "line": [line for line in lines if line.strip()],
    }
    chunks = [text[start : start + n] for start in range(0, len(text), n)]
    for kind, documents in expected.items():
        assert joined(documents_in(chunks, kind, size)) == documents


def test_a_record_is_a_document_in_its_field_or_a_template(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [
        {"text": "a\n\nb ", "title": "A", "by": {"name": "X"}},
        {"text": "爱", "title": "B", "by": {"name": "Y"}},
    ]
    paths = [
        write(tmp_path / "a.jsonl", "\r\n\n".join(map(json.dumps, records))),
        write(tmp_path / "a.json.gz", json.dumps(records)),
        write_parquet(tmp_path / "a.parquet", records),
    ]
    for path in paths:
        assert texts([path], documents="line") == ["a\n\nb ", "爱"]
        assert texts([path], text_field=["by.name"]) == ["X", "Y"]
        assert texts([path], template="{title}: {by.name}") == ["A: X", "B: Y"]
    table = write(tmp_path / "a.tsv", "label\ttext\ngood\ta fine film\n\nbad\tno wit\n")
    assert texts([table]) == ["a fine film", "no wit"]
    assert texts([table], text_field=["label"]) == texts([table], text_field=[0]) == ["good", "bad"]
    assert texts([table], template="{text} is {label}") == ["a fine film is good", "no wit is bad"]
    assert texts(write(tmp_path / "b.csv", '"one, column"\ntwo\n')) == ["one, column", "two"]


def test_what_holds_no_document_is_located(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\n\n{"text": 3}\n')
    message = complaint(texts, path)
    assert message.startswith(f"{path}, line 3: field 'text' holds 3, but must be a string")
    assert f"{path}, line 1: the template" in complaint(texts, path, template="{title}")
    message = complaint(texts, path, text_field=["body"])
    assert "no field 'body' among 'text'; name the right one as text_field" in message
    lines = write(tmp_path / "lines.jsonl", '{"text": ["one", "two"]}\n')
    assert complaint(texts, lines).endswith("by a template under [data], like template = '{text}'.")
    assert texts(lines, template="{text}") == ["one\ntwo"]
    table = write(tmp_path / "a.tsv", "first\tsecond\na\tb\n")
    message = complaint(texts, table)
    assert "line 2: a document is in one field, but there are 'first', 'second'; name" in message
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)  # which could not be read again
    assert f"{pipe} is a pipe or a device" in complaint(texts, pipe)


@pytest.mark.parametrize("content", ["", "\ufeff", " \n\n\t\r\n"])
def test_files_without_text_are_named(tmp_path: Path, content: str) -> None:
    paths = [write(tmp_path / "a.txt", content), write(tmp_path / "b.txt.gz", content)]
    for kind in ("file", "paragraph", "line"):
        message = complaint(texts, paths, documents=kind)
        assert f"There is no text in {paths[0]}, {paths[1]};" in message
    objects = write(tmp_path / "a.jsonl", '{"text": " "}\n')
    assert "There is no text in" in complaint(texts, objects)
    assert texts([*paths, objects, write(tmp_path / "c.txt", "c")]) == ["c"]


def test_a_long_document_comes_in_pieces_and_the_file_is_read_as_they_are_asked_for(
    tmp_path: Path,
) -> None:
    lines = "".join(f"line {number} of a long text\n" for number in range(60_000))
    objects = write(tmp_path / "a.jsonl", json.dumps({"text": lines}))
    path = write(tmp_path / "a.txt", lines)
    for file in (path, objects):
        pieces = list(read_documents([file]))
        assert "".join(piece.text for piece in pieces) == lines
        assert all(PIECE <= len(piece.text) <= 2 * PIECE for piece in pieces[:-1])
        assert all(piece.text.startswith("\nline") for piece in pieces[1:])
        assert [piece.starts for piece in pieces] == [True] + [False] * (len(pieces) - 1)
        assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    n_bytes: list[int] = []
    reading = read_documents([path], progress=n_bytes.append)
    next(reading)
    assert sum(n_bytes) < len(lines) / 4
    list(reading)
    assert sum(n_bytes) == path.stat().st_size


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
        pieces = list(read_documents(write(tmp_path / "a.txt", text)))
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
