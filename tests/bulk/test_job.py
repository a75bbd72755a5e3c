"""A bulk job writes each part once, goes on where it stopped, and refuses other jobs' folders."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.bulk import run_bulk
from qkv.errors import UserError
from tests.journeys.conftest import Command

LINES = [f"line {number}" for number in range(10)]


class Stopped(BaseException):
    """As sudden as a signal."""


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def counting(calls: list[int], stop_at: int = -1) -> Callable[[], Any]:
    def answer(lines: list[str], first: int) -> list[str]:
        if first == stop_at:
            raise Stopped
        calls.append(first)
        return [f"{first + number}: {line}" for number, line in enumerate(lines)]

    return lambda: answer


def run(lines: Path, folder: Path, open_answer: Callable[[], Any], **about: Any) -> None:
    run_bulk(open_answer, [lines], folder, ".txt", {"command": "count", **about}, part_lines=3)


def joined(folder: Path) -> list[str]:
    return "".join(path.read_text() for path in sorted(folder.glob("part-*"))).splitlines()


def test_a_stopped_job_goes_on_with_the_parts_that_are_missing(lines: Path, tmp_path: Path) -> None:
    folder, calls = tmp_path / "out", list[int]()
    with pytest.raises(Stopped):
        run(lines, folder, counting(calls, stop_at=6))
    assert calls == [0, 3]
    (folder / "part-000000.txt").unlink()
    run(lines, folder, counting(calls))
    assert calls == [0, 3, 0, 6, 9]
    assert joined(folder) == [f"{number}: {line}" for number, line in enumerate(LINES)]
    run(lines, folder, counting(calls))
    assert len(calls) == 5


def test_a_folder_of_another_job_is_refused(lines: Path, tmp_path: Path) -> None:
    run(lines, tmp_path / "out", counting([]))
    with pytest.raises(UserError, match="another job: beams differs"):
        run(lines, tmp_path / "out", counting([]), beams=4)
    lines.write_text("changed\n")
    with pytest.raises(UserError, match="another job: input differs"):
        run(lines, tmp_path / "out", counting([]))
    (tmp_path / "out" / "bulk.json").unlink()
    with pytest.raises(UserError, match="parts of something else"):
        run(lines, tmp_path / "out", counting([]))


def test_an_array_is_kept_as_one(lines: Path, tmp_path: Path) -> None:
    def answer(lines: list[str], first: int) -> Any:
        return np.arange(first, first + len(lines), dtype=np.float32)[:, None]

    job = run_bulk(lambda: answer, [lines], tmp_path / "out", ".npy", {}, part_lines=4)
    stored = np.concatenate([np.load(job.path(part)) for part in job.parts])
    assert stored.tolist() == [[float(number)] for number in range(10)]


def test_the_command_gives_what_the_command_for_lines_gives(qkv: Command, tmp_path: Path) -> None:
    lines = tmp_path / "lines.zh"
    lines.write_text("我爱你\n\n她今天去了北京。\n我爱她\n")
    answer = qkv("bulk", "translate", str(lines), str(tmp_path / "out"), "--part-lines", "3")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"4 lines in 2 parts: {tmp_path / 'out'}/part-*.txt\n"
    assert joined(tmp_path / "out") == qkv("translate", stdin=lines.read_text()).lines
    one = qkv("bulk", "translate", str(lines), str(tmp_path / "one"))
    assert one.out == f"4 lines in 1 part: {tmp_path / 'one'}/part-*.txt\n"
    answer = qkv("bulk", "translate", str(lines), str(tmp_path / "out"), "--beams", "2")
    assert answer.code == 2
    assert "another job: settings, part_lines differs" in answer.err


def test_errors_count_the_lines_of_the_whole_file(qkv: Command, tmp_path: Path) -> None:
    lines = tmp_path / "lines.zh"
    lines.write_text("我爱你\n" * 5 + "我" * 2000 + "\n")
    answer = qkv("bulk", "translate", str(lines), str(tmp_path / "out"), "--part-lines", "4")
    assert answer.code == 2
    assert "Text 6 " in answer.err
    assert [path.name for path in (tmp_path / "out").glob("part-*")] == ["part-000000.txt"]


def test_ray_is_imported_by_those_who_ask_for_workers_alone() -> None:
    program = (
        "import sys, qkv.bulk.on_ray, qkv.cli.bulk, qkv.serve.replicas; print('ray' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout == b"False\n"
