import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qkv.config import DataConfig, TokenizerConfig
from qkv.data import Corpus, Specials, Tokens, load_corpus, shards
from qkv.data import tokens as tokens_module
from qkv.errors import UserError
from qkv.text import Tokenizer, train_tokenizer

KINDS = ["bpe", "unigram", "wordpiece", "char", "byte"]
TEXT = "Ein Satz, noch ein Satz.\nUnd dann: 我爱你！\n\nWas? Über 12 Bäume...\n"
Make = Callable[..., Corpus]


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    return {
        kind: train_tokenizer([TEXT] * 3, TokenizerConfig(kind=kind, vocab_size=400))  # type: ignore[arg-type]
        for kind in KINDS
    }


@pytest.fixture
def make(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> Make:
    """Lay down texts that are written to files first, one each."""

    def of(text: str | list[str], kind: str = "char", progress: Any = None, **more: Any) -> Corpus:
        names = []
        for number, content in enumerate([text] if isinstance(text, str) else text):
            path = tmp_path / f"{number:03d}.txt"
            if not path.exists() or path.read_bytes() != content.encode():
                path.write_bytes(content.encode())
            names.append(str(path))
        config = DataConfig(**{"text": tuple(names), **more})
        return load_corpus(config, tokenizers[kind], tmp_path / "run", progress)

    return of


def ids(tokens: Tokens) -> list[int]:
    return tokens.read(0, len(tokens)).tolist()


def split(tokens: Tokens) -> list[list[int]]:
    """The documents of a stream, with what was added to them."""
    ends = [*tokens.starts(1, len(tokens)).tolist(), len(tokens)]
    return [
        tokens.read(start, end - start).tolist()
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def folders(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "run" / "shards").iterdir() if path.name != ".lock"]


def complaint(make: Make, *arguments: Any, **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(*arguments, **more)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bos", [True, False])
def test_every_document_is_laid_down_whole(
    make: Make,
    tokenizers: dict[str, Tokenizer],
    kind: str,
    bos: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens_module, "SHARD", 7)
    monkeypatch.setattr(tokens_module, "HELD", 5)
    monkeypatch.setattr(shards, "BATCH", 50)
    corpus = make(TEXT * 10, kind, documents="line", bos=bos, valid_share=0.1)
    tokenizer = tokenizers[kind]
    special = Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    lines = [line for line in (TEXT * 10).split("\n") if line]
    encoded = tokenizer.encode_many(lines)
    whole = [[*([special.bos] if bos else []), *line, special.eos] for line in encoded]
    found = split(corpus.train) + split(corpus.valid)
    assert sorted(found) == sorted(whole)
    assert corpus.valid.n_documents == 3
    left = [line for number, line in enumerate(encoded) if not shards._is_held_out(number, 0.1)]
    memory = Tokens.of(left, special, bos)
    assert ids(corpus.train) == ids(memory)
    assert corpus.train.documents.tolist() == memory.documents.tolist()
    assert corpus.train.n_bytes + corpus.valid.n_bytes == sum(len(line.encode()) for line in lines)
    assert corpus.train.bos is bos
    assert corpus.test is None


def test_a_corpus_is_made_once(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    texts = [TEXT] * 30
    first = make(texts, progress=lambda done, total: told.append((done, total)))
    size = 30 * len(TEXT.encode())
    assert [total for _, total in told] == [size] * len(told)
    assert told == sorted(told)
    assert told[-1] == (size, size)
    monkeypatch.setattr(shards, "_make", None)
    again = make(texts)
    assert ids(first.train) == ids(again.train)
    assert ids(first.valid) == ids(again.valid)
    assert len(folders(tmp_path)) == 1


def test_other_text_settings_or_tokenizers_give_another_corpus(
    make: Make, tmp_path: Path, tokenizers: dict[str, Tokenizer]
) -> None:
    texts = [f"{TEXT}{number}" for number in range(25)]
    valid = str(tmp_path / "000.txt")
    changes: list[tuple[Any, ...]] = [
        (texts, "char"),
        (texts, "bpe"),
        (texts[:-1], "char"),
        ([*texts[:-1], "other"], "char"),
    ]
    settings: list[dict[str, Any]] = [
        {"bos": False},
        {"documents": "line"},
        {"valid_share": 0.1},
        {"valid_text": (valid,)},
        {"test_text": (valid,)},
    ]
    for number, (some, kind) in enumerate(changes, 1):
        make(some, kind)
        assert len(folders(tmp_path)) == number
    for number, more in enumerate(settings, len(changes) + 1):
        make(changes[-1][0], "char", **more)
        assert len(folders(tmp_path)) == number
    before = len(folders(tmp_path))
    make(changes[-1][0], "char")
    os.utime(tmp_path / "003.txt", (1, 1))  # may have been written anew
    make(changes[-1][0], "char")
    assert len(folders(tmp_path)) == before + 1
    make(changes[-1][0], "char", across=True, max_length=17)  # what windows are made of is the same
    assert len(folders(tmp_path)) == before + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_read_from_its_file_finds_the_corpus_again(
    make: Make, tmp_path: Path, tokenizers: dict[str, Tokenizer], kind: str
) -> None:
    make(TEXT * 30, kind)
    tokenizers[kind].save(tmp_path / "tokenizer.json")
    read = Tokenizer.load(tmp_path / "tokenizer.json")
    load_corpus(DataConfig(text=(str(tmp_path / "000.txt"),)), read, tmp_path / "run")
    assert len(folders(tmp_path)) == 1


@pytest.mark.parametrize("bos", [True, False])
def test_a_single_text_is_validated_on_its_end(make: Make, bos: bool) -> None:
    random = Random(0)
    for n, share in ((1000, 0.1), (997, 0.05), (50, 0.5)):
        text = "".join(random.choices("ab我 \n", k=n))
        corpus = make(text, bos=bos, valid_share=share)
        n_train = int(n * (1 - share))
        assert len(corpus.train) == n_train + bos
        assert len(corpus.valid) == n - n_train + 1
        assert corpus.train.n_bytes == len(text[:n_train].encode())
        assert corpus.valid.n_bytes == len(text[n_train:].encode())
        assert corpus.train.n_documents == corpus.valid.n_documents == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_cut_text_are_counted(
    make: Make, tokenizers: dict[str, Tokenizer], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "HELD", 100)
    monkeypatch.setattr(tokens_module, "MARKS", 5)
    text = "Ein Satz, noch ein Satz.\n" * 8000  # in several pieces
    corpus = make(text, kind, valid_share=0.3)
    tokenizer = tokenizers[kind]
    trained = tokenizer.decode(ids(corpus.train))
    assert text.startswith(trained)
    assert corpus.train.n_bytes == len(trained.encode())
    assert corpus.train.n_bytes + corpus.valid.n_bytes == len(text.encode())


def test_a_few_documents_are_cut_where_their_text_has_its_share(make: Make) -> None:
    texts = ["abcd", "efg", "hij"]  # ten characters, each with BOS and EOS around it
    for share, n_train in ((0.45, 1 + 4 + 1 + 1 + 1), (0.3, 6 + 5), (0.05, 6 + 5 + 1 + 2)):
        corpus = make(texts, valid_share=share)
        assert len(corpus.train) == n_train
        assert len(corpus.valid) == 16 - n_train
        assert corpus.train.n_bytes == int(10 * (1 - share))


def test_enough_documents_are_held_out_at_random(
    make: Make, tokenizers: dict[str, Tokenizer]
) -> None:
    corpus = make("".join(f"{number}\n" for number in range(1000)), documents="line")
    train, valid = (
        [int(text) for text in tokenizers["char"].decode_many(split(tokens))]
        for tokens in (corpus.train, corpus.valid)
    )
    assert sorted(train + valid) == list(range(1000))
    assert len(valid) == corpus.valid.n_documents == 50
    assert len({after - before for before, after in pairwise(valid)}) > 10


@pytest.mark.parametrize("share", [0.5, 0.3, 0.05, 0.031, 0.01])
def test_the_held_out_share_is_what_was_asked_for(share: float) -> None:
    enough = max(shards.FEW, int(1 / share) + 1)
    held_out = [shards._is_held_out(number, share) for number in range(20 * enough)]
    assert any(held_out[:enough])
    assert not all(held_out[:enough])
    assert sum(held_out) == pytest.approx(20 * enough * share, rel=0.15)


def test_validation_and_test_text_of_their_own(make: Make, tmp_path: Path) -> None:
    (tmp_path / "valid.jsonl").write_text('{"text": "ab"}\n{"text": "cd"}\n')
    (tmp_path / "test.txt.gz").write_bytes(gzip.compress(b"abc"))
    own = {"valid_text": (str(tmp_path / "valid.jsonl"),), "valid_share": 0.0}
    corpus = make(TEXT, **own, test_text=(str(tmp_path / "test.txt.gz"),))
    assert (len(corpus.train), corpus.train.n_bytes) == (len(TEXT) + 2, len(TEXT.encode()))
    assert (corpus.valid.n_documents, corpus.valid.n_bytes) == (2, 4)
    assert corpus.test is not None
    assert (corpus.test.n_documents, corpus.test.n_bytes) == (1, 3)


def test_shards_may_stand_elsewhere(make: Make, tmp_path: Path) -> None:
    make(TEXT, shards=str(tmp_path / "else where"))
    assert not (tmp_path / "run").exists()
    (folder,) = (path for path in (tmp_path / "else where").iterdir() if path.is_dir())
    index = json.loads((folder / "index.json").read_text())
    assert index["streams"]["train"]["tokens"] == len(TEXT) + 2


def test_a_large_vocabulary_takes_four_bytes(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = make(TEXT)
    monkeypatch.setattr(Tokenizer, "__len__", lambda self: 65_536)
    (tmp_path / "000.txt").unlink()
    large = make(TEXT + " ")
    assert (small.train.parts[0].dtype, large.train.parts[0].dtype) == ("uint16", "uint32")
    assert ids(large.train)[:20] == ids(small.train)[:20]


@pytest.mark.parametrize("name", ["train-00000.bin", "train-documents.bin"])
def test_a_truncated_shard_is_named(make: Make, tmp_path: Path, name: str) -> None:
    make(TEXT)
    path = folders(tmp_path)[0] / name
    os.truncate(path, path.stat().st_size - 1)
    assert f"{path} has " in complaint(make, TEXT)


def test_without_its_index_a_corpus_is_made_anew(make: Make, tmp_path: Path) -> None:
    whole = ids(make(TEXT).train)
    (folders(tmp_path)[0] / "index.json").unlink()
    assert ids(make(TEXT).train) == whole
    (folders(tmp_path)[0] / "index.json").write_text('{"dtype": ')
    assert ids(make(TEXT).train) == whole


def test_what_cannot_be_trained_or_validated_on_is_refused(make: Make, tmp_path: Path) -> None:
    assert "valid_share is 0 and no valid_text is given" in complaint(make, TEXT, valid_share=0.0)
    assert "no text is given" in complaint(make, [])
    assert "0 tokens are left for validation" in complaint(make, "abcdefgh", valid_share=1e-17)
    assert "1 tokens are left for training" in complaint(make, "a", valid_share=0.5)
    assert "no text in" in complaint(make, "")
    assert folders(tmp_path) == []


def test_a_full_disk_leaves_nothing_behind(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tokens_module, "_append", full)
        with pytest.raises(OSError, match="No space left") as caught:
            make(TEXT)
    assert str(tmp_path / "run" / "shards") in str(caught.value.filename)
    assert folders(tmp_path) == []
    assert len(make(TEXT).train)


def test_two_at_once_share_the_work(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, made = shards._make, []

    def slowly(*arguments: Any) -> Corpus:
        made.append(1)
        time.sleep(0.3)  # long enough for the other to come in, were the door open
        return plain(*arguments)

    monkeypatch.setattr(shards, "_make", slowly)
    make_one = partial(make, TEXT, valid_share=0.1)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: make_one(), range(2))
    assert ids(one.train) == ids(other.train)
    assert len(made) == 1


DYING = """
import os, signal, sys
from pathlib import Path
from qkv.config import DataConfig
from qkv.data import load_corpus, shards
from qkv.text import Tokenizer
shards.write_json = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
folder = Path(sys.argv[1])
config = DataConfig(text=(str(folder / "000.txt"),))
load_corpus(config, Tokenizer.load(folder / "tokenizer.json"), folder / "run")
"""


def test_what_a_killed_process_has_left_does_no_harm(
    make: Make, tmp_path: Path, tokenizers: dict[str, Tokenizer]
) -> None:
    tokenizers["char"].save(tmp_path / "tokenizer.json")
    (tmp_path / "000.txt").write_text(TEXT)
    killed = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = folders(tmp_path)
    assert left.name.endswith(".writing")
    assert (left / "train-00000.bin").exists()
    assert len(make([TEXT, TEXT]).train)  # of another text
    assert [path.name.endswith(".writing") for path in folders(tmp_path)] == [False]
    assert len(make(TEXT).train)
    assert len(folders(tmp_path)) == 2
