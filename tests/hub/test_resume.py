"""What has arrived is never asked for again, and never lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from qkv.hub.resume import CHUNK, UnreachableError, download
from tests.hub.server import Files

CONTENT = random.Random(0).randbytes(3 * CHUNK + 5)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def test_a_file_arrives_and_its_bytes_are_counted(server: Files, part: Path) -> None:
    server.content["a"] = CONTENT
    heard: list[tuple[int, int]] = []
    download(f"{server.address}/a", part, len(CONTENT), lambda *counts: heard.append(counts))
    assert part.read_bytes() == CONTENT
    assert server.asked == [""]
    assert heard == sorted(heard)
    assert heard[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("have", [1, CHUNK, len(CONTENT) - 1])
def test_a_part_is_completed_from_its_end_on(server: Files, part: Path, have: int) -> None:
    server.content["a"] = b"?" * have + CONTENT[have:]  # what is there is not fetched again
    part.write_bytes(CONTENT[:have])
    heard: list[int] = []
    download(f"{server.address}/a", part, len(CONTENT), lambda done, _: heard.append(done))
    assert part.read_bytes() == CONTENT
    assert server.asked == [f"bytes={have}-"]
    assert heard[0] > have


def test_a_whole_part_asks_for_nothing(server: Files, part: Path) -> None:
    part.write_bytes(CONTENT)
    download(f"{server.address}/a", part, len(CONTENT))
    assert server.asked == []


def test_a_connection_that_breaks_off_is_opened_again(server: Files, part: Path) -> None:
    server.content["a"] = CONTENT
    server.break_after = CHUNK + 7
    download(f"{server.address}/a", part, len(CONTENT))
    assert part.read_bytes() == CONTENT
    assert server.asked == ["", f"bytes={CHUNK + 7}-", f"bytes={2 * CHUNK + 14}-"]


def test_a_server_without_ranges_starts_from_the_beginning(server: Files, part: Path) -> None:
    server.content["a"] = CONTENT
    server.ranges = False
    part.write_bytes(b"?" * 100)
    download(f"{server.address}/a", part, len(CONTENT))
    assert part.read_bytes() == CONTENT


def test_a_server_that_gives_nothing_more_is_given_up(server: Files, part: Path) -> None:
    server.content["a"] = CONTENT[:100]
    with pytest.raises(UnreachableError):
        download(f"{server.address}/a", part, len(CONTENT))
    assert part.read_bytes() == CONTENT[:100]


@pytest.mark.parametrize("address", ["{}/none", "http://127.0.0.1:1/a", "http://u:****@x:y/a"])
def test_what_cannot_be_reached_leaves_the_part(server: Files, part: Path, address: str) -> None:
    part.write_bytes(CONTENT[:50])
    with pytest.raises(UnreachableError):
        download(address.format(server.address), part, len(CONTENT))
    assert part.read_bytes() == CONTENT[:50]


def test_a_disk_that_fails_is_not_the_server_s_fault(server: Files, tmp_path: Path) -> None:
    server.content["a"] = CONTENT
    with pytest.raises(FileNotFoundError):
        download(f"{server.address}/a", tmp_path / "none" / "a.part", len(CONTENT))
