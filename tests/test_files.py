"""Files are whole or not there, whatever happens on the way."""

import errno
import json
import os
import signal
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from qkv.errors import UserError
from qkv.files import read_values, replacing, write_json, write_text
from qkv.weights import StoredTensors, load_weights, read_metadata, read_tensors, write_tensors
from tests.forking import Python


def test_a_file_is_written_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    write_text(path, "我爱你\n")
    write_text(path, "早上好\n")
    assert path.read_text(encoding="utf-8") == "早上好\n"
    assert list(path.parent.iterdir()) == [path]


def test_json_is_written_for_people(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"text": "爱", "n": [1]})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"text": "爱", "n": [1]}
    assert "爱" in text
    assert text.count("\n") > 2


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_whole(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(type(error)), replacing(path) as beside:
        beside.write_text("ne")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_that_people_know(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, replacing(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "a.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        write_text(tmp_path / "file" / "a.txt", "a folder that is a file")


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_files_can_be_read_by_whom_the_umask_lets(tmp_path: Path, umask: int) -> None:
    """Safetensors by itself makes files that no other user, such as a server's, may read."""
    before = os.umask(umask)
    try:
        write_tensors(tmp_path / "a", {"x": torch.ones(2)}, {})
        write_text(tmp_path / "b", "text")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"}
    assert modes == {0o666 & ~umask}


def test_a_kill_between_writing_and_moving_leaves_the_old_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(3)}, {"old": "yes"})
    program = """
import os, signal, sys, torch
from pathlib import Path
from qkv.weights import write_tensors
Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
write_tensors(Path(sys.argv[1]), {"x": torch.ones(3)}, {})
"""
    killed = Python(["-c", program, tmp_path / "a.safetensors"])
    assert killed.wait() == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2  # the new one lies beside, all written
    assert read_tensors(tmp_path / "a.safetensors")["x"].tolist() == [0, 0, 0]
    assert read_metadata(tmp_path / "a.safetensors") == {"old": "yes"}


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    tensors = {
        "matrix": torch.randn(4, 6).T,  # not contiguous
        "half": torch.randn(3).bfloat16(),
        "number": torch.tensor(2.0),
        "none": torch.empty(0, 3),
    }
    write_tensors(tmp_path / "a.safetensors", tensors, {"note": "爱"})
    found = read_tensors(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert all(found[name].dtype == tensors[name].dtype for name in tensors)
    assert read_metadata(tmp_path / "a.safetensors") == {"note": "爱"}


def test_a_full_disk_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As safetensors 0.8 says it, tried on a full tmpfs."""
    words = "Error while serializing: I/O error: No space left on device (os error 28)"

    def full(*arguments: object) -> None:
        raise SafetensorError(words)

    write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(3)}, {})
    monkeypatch.setattr("qkv.weights.save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(3)}, {})
    assert caught.value.filename == str(tmp_path / "a.safetensors")
    assert read_tensors(tmp_path / "a.safetensors")["x"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("size", [0, 5, 40, -1])
@pytest.mark.parametrize("read", [read_tensors, read_metadata])
def test_a_truncated_file_is_named(tmp_path: Path, size: int, read) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.zeros(30)}, {})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match="truncated or damaged") as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*a\.safetensors"):
        read_tensors(tmp_path / "a.safetensors")


def test_each_weight_that_does_not_fit_is_named(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    given = {"weight": torch.zeros(3, 2), "scale": torch.zeros(1)}
    with pytest.raises(UserError) as caught:
        load_weights(model, given, tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} does not fit its config: missing bias; unexpected scale; "
        f"weight is [3, 2] but should be [2, 3]."
    )
    assert model.weight.abs().sum() > 0  # untouched


def test_weights_that_are_no_floats_are_named(tmp_path: Path) -> None:
    path, model = tmp_path / "a.safetensors", nn.Linear(3, 2)
    given = {"weight": torch.zeros(2, 3, dtype=torch.int8), "bias": torch.zeros(2).half()}
    write_tensors(path, given, {})
    with pytest.raises(UserError) as caught:
        load_weights(model, StoredTensors(path), path)
    assert str(caught.value) == (
        f"{path} does not fit its config: weight is I8, no float of 16 bits or more."
    )


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_file_that_may_not_be_read_is_not_said_to_be_missing(
    tmp_path: Path, error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, framework: str) -> None:
        raise error(path)

    path = tmp_path / "a.safetensors"
    path.write_bytes(b"")
    monkeypatch.setattr("qkv.weights.safe_open", refuse)
    with pytest.raises(UserError, match="may not be read by this user"):
        read_tensors(path)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through\n")
    assert os.read(reader, 100) == b"through\n"
    assert pipe.is_fifo()


def test_half_a_character_in_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(r'{"token": "\ud83d\ude00"}')
    assert read_values(path) == {"token": "😀"}
    path.write_text(r'{"token": "\uD83D"}')
    with pytest.raises(UserError, match=r"not JSON \(.*surrogates not allowed"):
        read_values(path)
