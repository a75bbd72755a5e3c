from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data import Piece, Specials, Tokens
from qkv.data import tokens as module
from qkv.data.tokens import TokenWriter, open_tokens
from qkv.errors import UserError

SPECIAL = Specials(pad=0, bos=2, eos=3)
DOCUMENTS = st.lists(st.lists(st.integers(4, 65_534), max_size=6), min_size=1, max_size=8)


def on_disk(
    folder: Path, documents: Sequence[Sequence[int]], bos: bool = True, dtype: str = "<u2"
) -> Tokens:
    """Lay documents down in files, in pieces of two tokens."""
    writer = TokenWriter(folder, "some", dtype, SPECIAL.bos if bos else None, SPECIAL.eos)
    for ids in documents:
        parts = [ids[start : start + 2] for start in range(0, len(ids), 2)] or [[]]
        for number, part in enumerate(parts):
            piece = Piece("é" * len(part), number == 0, number == len(parts) - 1)
            writer.add(piece, part)
    return open_tokens(folder, "some", dtype, bos, writer.finish())


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD", 5)
    monkeypatch.setattr(module, "HELD", 3)


@given(DOCUMENTS, st.booleans(), st.sampled_from(["<u2", "<u4"]), st.data())
def test_on_disk_as_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    bos: bool,
    dtype: str,
    data: st.DataObject,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHARD", 5)
        patch.setattr(module, "HELD", 3)
        disk = on_disk(tmp_path_factory.mktemp("tokens"), documents, bos, dtype)
    n_bytes = 2 * sum(map(len, documents))
    memory = Tokens.of(documents, SPECIAL, bos, n_bytes)
    plain = [id for ids in documents for id in ([2] if bos else []) + ids + [3]]
    assert len(disk) == len(memory) == len(plain)
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(plain))] * 2)))
    lengths = [len(ids) + 1 + bos for ids in documents]
    starts = np.cumsum([0, *lengths[:-1]])
    for tokens in (disk, memory):
        assert tokens.read(0, len(plain)).tolist() == plain
        assert tokens.read(begin, end - begin).tolist() == plain[begin:end]
        assert tokens.read(0, 0).dtype == tokens.starts(0, 1).dtype == np.int64
        assert tokens.starts(begin, end).tolist() == [s for s in starts if begin <= s < end]
        assert (tokens.n_bytes, tokens.bos) == (n_bytes, bos)
        assert tokens.n_documents == len(documents)


@given(DOCUMENTS, st.data())
def test_a_range_counts_from_its_own_beginning(
    documents: list[list[int]], data: st.DataObject
) -> None:
    whole = Tokens.of(documents, SPECIAL)
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    part = replace(whole, begin=begin, end=end)
    assert len(part) == end - begin
    assert part.read(0, len(part)).tolist() == whole.read(begin, end - begin).tolist()
    assert (part.starts(0, 10**9) + begin).tolist() == whole.starts(begin, end).tolist()
    numbers = np.searchsorted(whole.documents, np.arange(begin, end), side="right")
    assert part.n_documents == len(set(numbers.tolist()))


def test_reading_past_the_end_is_refused() -> None:
    tokens = replace(Tokens.of([[5, 6, 7]], SPECIAL), begin=1, end=4)
    assert tokens.read(0, 3).tolist() == [5, 6, 7]
    for start, count in ((0, 4), (-1, 2), (4, 0)):
        with pytest.raises(IndexError):
            tokens.read(start, count)


def test_files_are_of_bounded_size_and_read_only(tmp_path: Path, small_files: None) -> None:
    tokens = on_disk(tmp_path, [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14]])
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    shards = {f"some-{number:05d}.bin": 10 for number in range(3)} | {"some-00003.bin": 2}
    assert sizes == shards | {"some-documents.bin": 24}
    with pytest.raises(ValueError, match="read-only"):
        tokens.parts[0][0] = 1


@pytest.mark.parametrize("name", ["some-00001.bin", "some-00002.bin", "some-documents.bin"])
def test_a_truncated_or_missing_file_is_named(tmp_path: Path, small_files: None, name: str) -> None:
    documents = [[5, 6, 7, 8], [9], [10, 11, 12]]
    on_disk(tmp_path, documents)
    facts = {"tokens": 14, "documents": 3, "bytes": 0}
    path = tmp_path / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError) as caught:
        open_tokens(tmp_path, "some", "<u2", True, facts)
    message = str(caught.value)
    assert f"{path} has {size - 1} bytes but should have {size}; delete the folder" in message
    path.unlink()
    with pytest.raises(UserError, match="has 0 bytes"):
        open_tokens(tmp_path, "some", "<u2", True, facts)
