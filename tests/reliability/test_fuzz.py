"""Broken files of every kind are read or refused with a sentence: some cases of bench.fuzz."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench import fuzz as fuzz_module
from bench import fuzz_readers
from bench.fuzz import fuzz, fuzz_many, run_cases
from bench.fuzz_readers import READERS, Reader

CASES = {"recipe": 60, "chat program": 3, "gguf": 40, "hugging face": 25, "adapter": 30}


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory: pytest.TempPathFactory) -> None:
    fuzz_readers.SCRATCH = tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", READERS)
def test_broken_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    findings = fuzz(name, CASES.get(name, 100), 7, tmp_path / "case")
    assert findings.failures == {}
    assert findings.counts["refused"] or name == "chat program"


def _misbehave(folder: Path) -> object:
    import ctypes
    import faulthandler

    faulthandler.disable()  # the crash below is meant, and would fill the test's output
    deed = (folder / "deed").read_bytes()
    if deed == b"raise":
        raise KeyError
    if deed == b"open":
        return (folder.parent / "outside.txt").exists() or open("/etc/passwd").close()  # noqa: PTH123
    if deed == b"memory":
        return bytes(1 << 32)
    if deed == b"work":
        while True:
            pass
    if deed.startswith(b"sleep"):
        time.sleep(float(deed[5:]))
    return ctypes.string_at(0) if deed == b"crash" else deed


@pytest.mark.parametrize(
    ("deed", "signature"),
    [
        (b"raise", "KeyError at "),
        (b"open", "opens /etc/passwd"),
        (b"memory", "MemoryError at "),
        (b"crash", "crash"),
    ],
)
def test_the_harness_notices_what_it_is_there_for(
    tmp_path: Path, deed: bytes, signature: str
) -> None:
    reader = Reader(lambda: [], {}, _misbehave)
    cases = [(1, {"deed": b"nothing"}), (2, {"deed": deed})]
    good, bad = run_cases(reader, cases, tmp_path / "case")
    assert good[:2] == [1, "read"]
    assert bad[:2] == [2, "failed"] and bad[2].startswith(signature)


def test_a_hang_is_told_from_a_process_that_waits_for_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_module, "SECONDS", 0.1)
    reader = Reader(lambda: [], {}, _misbehave)
    cases = [(1, {"deed": b"sleep 0.4"}), (2, {"deed": b"work"})]
    slow, busy = run_cases(reader, cases, tmp_path / "case")
    assert (slow[1], busy[1:3]) == ("read", ["failed", "hang"])
    monkeypatch.setattr(fuzz_module, "PATIENCE", 0.2)
    (idle,) = run_cases(reader, [(1, {"deed": b"sleep 60"})], tmp_path / "case")
    assert idle[1:3] == ["failed", "hang"]


def test_several_processes_find_what_one_does(tmp_path: Path) -> None:
    alone = fuzz("tsv", 600, 7, tmp_path / "case")
    many = fuzz_many("tsv", range(600), 7, tmp_path / "cases", processes=2)
    assert (many.counts, many.failures) == (alone.counts, alone.failures)
    none = fuzz_many("tsv", range(600), 7, tmp_path / "cases", processes=2, seconds=-1)
    assert none.counts == {}
