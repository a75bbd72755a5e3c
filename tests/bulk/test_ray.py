"""Bulk work and replicas on a local Ray cluster: a process that is killed takes nothing with it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.journeys.conftest import Command
from tests.proofs.models import KINDS, folder_of

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,  # Ray's processes take most of a minute to start on two cores
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]
PATIENCE = 400.0  # seconds, on a machine that does other work too


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Let one test at a time have a cluster: two of them starve each other on two cores."""
    with (Path(tempfile.gettempdir()) / "qkv-tests-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def started(arguments: list[str], out: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run qkv; its processes have a mark in their environment."""
    mark = f"QKV_TEST_MARK={uuid.uuid4()}"
    name, value = mark.split("=")
    few = {"OMP_NUM_THREADS": "1", "RAY_prestart_worker_first_driver": "0"}  # and few processes
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", *arguments],
            env={**os.environ, **few, name: value},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, mark
    finally:
        process.terminate()
        process.wait(PATIENCE)


def marked(mark: str, title: str) -> list[int]:
    """Processes with a mark whose title begins so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(title.encode()):
                environment = (folder / "environ").read_bytes().split(b"\0")
                found += [int(folder.name)] if mark.encode() in environment else []
        except OSError:
            continue
    return sorted(found)


def until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], said: Path) -> None:
    """Wait for something that a process does; skip where Ray itself cannot start."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        if process.poll() is not None:
            words = said.read_text()
            if "The Ray cluster of this machine does not answer" in words:
                pytest.skip(words)
            pytest.fail(words)
        time.sleep(0.02)


def test_a_killed_worker_loses_nothing_and_repeats_nothing(qkv: Command, tmp_path: Path) -> None:
    model = str(folder_of(KINDS["translator"](), tmp_path / "model"))
    lines, out = tmp_path / "lines.txt", tmp_path / "out"
    lines.write_text("".join(f"{number:06d}\n" for number in range(2_000)))
    options = ["--model", model, "--device", "cpu"]
    command = ["bulk", "translate", str(lines), str(out), "--part-lines", "50", *options]
    words = tmp_path / "said.txt"
    with started([*command, "--workers", "2"], words) as (process, mark):
        until(lambda: len(list(out.glob("part-*"))) > 2, process, words)
        workers = marked(mark, "ray::MapWorker")
        os.kill(workers[0], signal.SIGKILL)
        assert process.wait(PATIENCE) == 0
    assert len(workers) == 2
    assert words.read_text().endswith(f"2,000 lines in 40 parts: {out}/part-*.txt\n")
    assert len(list(out.glob("part-*.txt"))) == 40
    assert not list(out.glob(".*.writing"))
    alone = qkv("translate", *options, stdin=lines.read_text())
    assert "".join(path.read_text() for path in sorted(out.glob("part-*"))) == alone.out


def test_replicas_answer_at_one_address_and_go_on_without_one_of_them(tmp_path: Path) -> None:
    said = tmp_path / "said.txt"
    arguments = ["serve", "zh-en", "--port", "0", "--replicas", "2", "--device", "cpu"]
    with started(arguments, said) as (process, mark):
        until(lambda: "Serving zh-en at http://127.0.0.1:" in said.read_text(), process, said)
        url = said.read_text().partition("at ")[2].split()[0]
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            assert client.get("/health").json() == {"status": "ok"}
            body = {"q": "我爱你", "source": "zh", "target": "en"}
            first = client.post("/translate", json=body).json()
            assert first["translatedText"]
            replicas = marked(mark, "ray::ServeReplica")
            assert len(replicas) == 2
            os.kill(replicas[0], signal.SIGKILL)
            answers = [client.post("/translate", json=body) for _ in range(6)]
            # The request that the killed one held may fail; later ones are answered.
            assert [answer.json() for answer in answers[2:]] == [first] * 4
            until(
                lambda: len(set(marked(mark, "ray::ServeReplica")) - set(replicas)) == 1,
                process,
                said,
            )
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
