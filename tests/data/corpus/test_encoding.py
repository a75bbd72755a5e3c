"""Text is encoded to the same bytes by any number of processes, from wherever it was stopped."""

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.config import DataConfig, TokenizerConfig
from qkv.data import HeldOut, TextCorpus, hold_out, load_corpus, text_tokenizer, training_text
from qkv.data.corpus import documents, encoding, held_out, shards
from qkv.errors import UserError
from qkv.text import Tokenizer, train_tokenizer
from tests.forking import Python

LINES = [f"Satz {number}: {'ein Baum' * (number % 7)} 我爱你." for number in range(900)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(LINES[:50], TokenizerConfig(kind="bpe", vocab_size=400))


@pytest.fixture
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "SPAN", 2000)
    monkeypatch.setattr(documents, "BLOCK", 16)
    monkeypatch.setattr(encoding, "SENT_TOGETHER", 1000)


def write_all(folder: Path) -> tuple[str, ...]:
    """Write the lines as text in several ways; return the files."""
    folder.mkdir(exist_ok=True)
    records = "".join(f"{json.dumps({'text': line})}\n" for line in LINES)
    contents = {
        "a.txt": "\ufeff" + "\r\n".join(LINES),
        "b.jsonl": records,
        "c.txt.gz": gzip.compress("\n".join(LINES).encode(), mtime=0),
        "d.txt": "\n \n\n".join(LINES) + "\n\n\n",
        "e.txt": "",
    }
    for name, content in contents.items():
        data = content if isinstance(content, bytes) else content.encode()
        if not (folder / name).exists():
            (folder / name).write_bytes(data)
    return tuple(str(folder / name) for name in contents)


def encoded(
    monkeypatch: pytest.MonkeyPatch, home: Path, tokenizer: Tokenizer, **settings: Any
) -> TextCorpus:
    monkeypatch.setenv("QKV_HOME", str(home))
    config = DataConfig(**{"documents": "line", "valid_share": 0.1, **settings})
    return load_corpus(config, tokenizer, hold_out(config))


def content(corpus: TextCorpus) -> list[Any]:
    parts = [part for part in (corpus.train, corpus.valid, corpus.test) if part is not None]
    return [
        (part.ids.tolist(), part.documents.tolist(), part.n_bytes, part.first_bytes, part.digest)
        for part in parts
    ]


@pytest.mark.parametrize("unit", ["line", "paragraph", "file"])
def test_the_number_of_processes_and_the_spans_change_nothing(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    texts = write_all(tmp_path / "texts")
    settings = {"text": texts, "test_text": texts[:2], "documents": unit, "bos": unit == "line"}
    whole = content(encoded(monkeypatch, tmp_path / "whole", tokenizer, **settings, processes=1))
    monkeypatch.setattr(documents, "SPAN", 2000)
    for processes in (1, 3):
        home = tmp_path / str(processes)
        found = encoded(monkeypatch, home, tokenizer, **settings, processes=processes)
        assert content(found) == whole
    assert len(whole[2][0]) > 0


def test_a_file_is_divided_between_documents(tmp_path: Path, small_spans: None) -> None:
    texts = write_all(tmp_path)
    found = list(documents.spans(Path(texts[0]), "line"))
    assert len(found) > 10 and found[-1].end == Path(texts[0]).stat().st_size
    content = Path(texts[0]).read_bytes()
    assert all(content[:start].endswith(b"\n") for _, start, _ in found[1:])
    assert [a.end for a in found[:-1]] == [b.start for b in found[1:]]
    assert [span.end for span in documents.spans(Path(texts[2]), "line")] == [None]


def test_a_very_long_document_is_read_as_a_stream(
    tmp_path: Path, tokenizer: Tokenizer, small_spans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*LINES, "lang " * 3000, *LINES[:9]]), "utf-8")
    settings = {"text": (str(path),)}
    whole = content(encoded(monkeypatch, tmp_path / "a", tokenizer, **settings))
    monkeypatch.setattr(documents, "LONGEST", 4000)
    assert [span.end for span in documents.spans(path, "line")][-1] is None
    assert content(encoded(monkeypatch, tmp_path / "b", tokenizer, **settings)) == whole


KILLED = """
import os, signal, sys
from qkv.config import DataConfig
from qkv.data import hold_out, load_corpus
from qkv.data.corpus import documents, encoding, shards
from qkv.text import Tokenizer
from pathlib import Path

documents.SPAN, encoding.SENT_TOGETHER, shards.FLUSHED = 2000, 1000, 1
flush, flushed = shards._Writer.flush, []

def flush_or_die(self):
    flush(self)
    flushed.append(1)
    if len(flushed) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

shards._Writer.flush = flush_or_die
texts = tuple(sys.argv[4:])
config = DataConfig(text=texts, documents="line", valid_share=0.1, processes=int(sys.argv[2]))
load_corpus(config, Tokenizer.load(Path(sys.argv[1])), hold_out(config))
"""


@pytest.mark.parametrize(("processes", "at"), [(1, 7), (2, 45)])
def test_encoding_that_was_killed_goes_on_with_the_next_chunk(
    tmp_path: Path,
    tokenizer: Tokenizer,
    small_spans: None,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    at: int,
) -> None:
    texts = write_all(tmp_path / "texts")
    whole = content(encoded(monkeypatch, tmp_path / "whole", tokenizer, text=texts))
    tokenizer.save(tmp_path / "tokenizer.json")
    home = {**os.environ, "QKV_HOME": str(tmp_path / "cut")}
    command = ["-c", KILLED, tmp_path / "tokenizer.json", processes, at, *texts]
    assert Python(command, home).wait() == -signal.SIGKILL
    for path in (tmp_path / "cut").rglob("*.bin"):  # a chunk that was cut short
        with path.open("ab") as file:
            file.write(b"???")
    encode, calls = encoding.ChunkEncoder.__call__, []
    monkeypatch.setattr(
        encoding.ChunkEncoder, "__call__", lambda self, job: calls.append(job) or encode(self, job)
    )
    assert content(encoded(monkeypatch, tmp_path / "cut", tokenizer, text=texts)) == whole
    resumed = len(calls)
    calls.clear()
    encoded(monkeypatch, tmp_path / "again", tokenizer, text=texts)
    assert resumed == len(calls) - at


@pytest.mark.parametrize("processes", [1, 2])
def test_errors_name_the_line_of_the_whole_file(
    tmp_path: Path,
    tokenizer: Tokenizer,
    small_spans: None,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
) -> None:
    lines = [line.encode() for line in LINES]
    lines[500] += b"\xff"
    (tmp_path / "text.txt").write_bytes(b"\n".join(lines))
    records = [json.dumps({"text": line}) for line in LINES]
    records[700] = '{"text": '
    (tmp_path / "records.jsonl").write_text("\n".join(records), "utf-8")
    for name, line in (("text.txt", 501), ("records.jsonl", 701)):
        config = DataConfig(text=(str(tmp_path / name),), documents="line", processes=processes)
        with pytest.raises(UserError, match=rf"{name}, line {line}:"):
            load_corpus(config, tokenizer, HeldOut(below=2**60))


def test_a_process_that_was_ended_is_told_of(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker.py").write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setattr(encoding, "WORKER", tmp_path / "worker.py")
    text = (write_all(tmp_path / "texts")[0],)
    with pytest.raises(UserError, match=r"has ended \(exit code -9\), perhaps for want of memory"):
        encoded(monkeypatch, tmp_path, tokenizer, text=text, processes=2)


def test_large_data_is_checked_when_it_is_read(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "CHECKED_WHOLE", 1000)
    monkeypatch.setattr(shards, "BLOCK", 512)
    text = (write_all(tmp_path / "texts")[0],)
    corpus = encoded(monkeypatch, tmp_path, tokenizer, text=text)
    (path,) = tmp_path.glob("tokens/*/train.bin")
    data = bytearray(path.read_bytes())
    data[5000] ^= 4
    path.write_bytes(data)
    damaged = encoded(monkeypatch, tmp_path, tokenizer, text=text).train
    before = corpus.train.ids[:2000]
    assert np.array_equal(damaged.read(0, 2000), before)  # bytes 0 … 4,000
    with pytest.raises(UserError, match=r"train\.bin differs from its checksum; delete"):
        damaged.read(1990, 500)


def test_what_is_known_of_a_large_text_is_found_out_once(
    tmp_path: Path, small_spans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_HOME", str(tmp_path))
    texts = write_all(tmp_path / "texts")
    wanted = TokenizerConfig(kind="bpe", vocab_size=300)
    for names in (texts[:1], texts[2:3]):  # one is read in spans, the other one cannot be
        config = DataConfig(text=names, documents="line", valid_share=0.1)
        small = hold_out(config)
        monkeypatch.setattr(held_out, "LARGE", 1000)
        assert hold_out(config) == small
        sample = list(training_text(config, small, 9000))
        assert 4000 < len("".join(sample)) <= 9000
        assert not {line for use, (line, *_) in _split(config, small) if use == "valid"} & {*sample}
        first = text_tokenizer(config, small, wanted, sample)
        monkeypatch.setattr(held_out, "_choose", None)
        assert hold_out(config) == small
        assert text_tokenizer(config, small, wanted, ()).digest == first.digest
        monkeypatch.undo()
        monkeypatch.setenv("QKV_HOME", str(tmp_path))


def _split(config: DataConfig, chosen: HeldOut) -> list[Any]:
    return list(chosen.split(documents.read_documents(config.text, config)))


def test_a_small_share_of_many_documents_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_out, "COUNTED", 500)
    config = DataConfig(text=write_all(tmp_path)[:1], documents="line", valid_share=0.001)
    assert hold_out(config) == HeldOut(below=round(0.001 * 2**64))
