"""Encoded arrays on disk: made once, resumed after a kill, never half read."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from qkv.data.corpus import shards as corpus_shards
from qkv.data.corpus.shards import Chunk, Shards, cached, cached_examples
from qkv.errors import UserError

WORDS = [f"word {number}" for number in range(10_000)]


def lengths(words: list[str]) -> dict[str, np.ndarray]:
    rows = np.array([[len(word), 7] for word in words], np.int16)
    return {"rows": rows, "flags": rows[:, 0] > 8}


def entries(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()]


def test_examples_are_encoded_once_for_each_content_and_key(tmp_path: Path) -> None:
    calls = []

    def encode(words: list[str]) -> dict[str, np.ndarray]:
        calls.append(len(words))
        return lengths(words)

    first = cached_examples(WORDS, ["a"], encode, tmp_path)
    assert np.array_equal(first["rows"], lengths(WORDS)["rows"])
    assert np.array_equal(first["flags"], lengths(WORDS)["flags"])
    assert first["rows"].dtype == np.int16 and not first["rows"].flags.writeable
    assert sum(calls) == len(WORDS) > max(calls)
    again = cached_examples(list(WORDS), ["a"], encode, tmp_path)
    assert (sum(calls), again.digest) == (len(WORDS), first.digest)
    other = cached_examples(WORDS[1:], ["a"], encode, tmp_path)
    assert other.digest != first.digest
    cached_examples(WORDS, ["b"], encode, tmp_path)
    assert len(entries(tmp_path)) == 3


def test_a_cache_that_cannot_be_written_to_says_how_to_name_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QKV_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"tokens, the folder of encoded data, .*; set QKV_HOME to"):
        cached_examples(WORDS, ["a"], lengths)


def test_encoding_of_examples_that_stopped_goes_on_with_the_next_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_shards, "FLUSHED", 1)
    calls: list[int] = []

    def encode(words: list[str]) -> dict[str, np.ndarray]:
        calls.append(len(words))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return lengths(words)

    with pytest.raises(KeyboardInterrupt):
        cached_examples(WORDS, ["a"], encode, tmp_path)
    found = cached_examples(WORDS, ["a"], encode, tmp_path)
    assert np.array_equal(found["rows"], lengths(WORDS)["rows"])
    assert sum(calls) == len(WORDS) + calls[1]


def test_nothing_to_encode_gives_empty_arrays(tmp_path: Path) -> None:
    nothing = Chunk(0, {"rows": np.zeros((0, 2))})
    shards = cached([], lambda done, facts: iter([nothing]), tmp_path)
    assert shards["rows"].shape == (0, 2)


def make(root: Path) -> Shards:
    return cached_examples(WORDS[:9], [], lengths, root)


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 4
    path.write_bytes(content)


def test_a_damaged_entry_is_named_and_encoded_again(tmp_path: Path) -> None:
    whole = make(tmp_path)["rows"].tolist()
    (folder,) = entries(tmp_path)
    os.truncate(folder / "rows.bin", 3)
    with pytest.warns(UserWarning, match=r"rows\.bin has 3 bytes but should have 36; the data is"):
        assert make(tmp_path)["rows"].tolist() == whole
    flip(folder / "rows.bin", 30)
    with pytest.warns(UserWarning, match=r"rows\.bin differs from its checksum; the data is"):
        assert make(tmp_path)["rows"].tolist() == whole
    (folder / "index.json").write_text('{"arrays": ')
    assert make(tmp_path)["rows"].tolist() == whole
    index = json.loads((folder / "index.json").read_text())
    for changed in ({**index, "facts": {"n": 7}}, {**index, "checksum": "0"}):
        (folder / "index.json").write_text(json.dumps(changed))
        with pytest.warns(UserWarning, match=r"index\.json differs from its checksum"):
            assert make(tmp_path).facts == {}


def test_two_at_once_share_the_work(tmp_path: Path) -> None:
    calls = []

    def slowly(words: list[str]) -> dict[str, np.ndarray]:
        calls.append(1)
        time.sleep(0.2)  # long enough for the second to come in, were the door open
        return lengths(words)

    with ThreadPoolExecutor(2) as pool:
        both = pool.map(lambda _: cached_examples(WORDS[:9], [], slowly, tmp_path), range(2))
    assert len({shards.digest for shards in both}) == len(calls) == 1


def test_entries_that_nobody_uses_are_deleted_after_a_month(tmp_path: Path) -> None:
    make(tmp_path)
    (old,) = entries(tmp_path)
    os.utime(old / "index.json", (time.time() - 31 * 86_400,) * 2)
    make(tmp_path)  # used again: it stays
    cached_examples(WORDS[:5], [], lengths, tmp_path)
    assert old in entries(tmp_path)
    os.utime(old / "index.json", (time.time() - 31 * 86_400,) * 2)
    cached_examples(WORDS[:4], [], lengths, tmp_path)
    assert old not in entries(tmp_path)
