"""Hub models through the library that people have, from a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from qkv.errors import UserError
from qkv.hub import huggingface, pull_repository
from qkv.shelf import find_model
from tests.hub.repositories import COMMIT, Hub
from tests.hub.server import serving

WEIGHTS = b"weights" * 500
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "README.md": b"A card.",
    "1_Pooling/config.json": b"[]",
    "onnx/model.onnx": b"another",
}
NEEDED = ["1_Pooling/config.json", "README.md", "config.json", "model.safetensors"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serving(Hub("ann/tiny", dict(FILES))) as served:
        use(monkeypatch, served.address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield served


def use(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Let the library go to this address only."""
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


def mistake(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        pull_repository(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_needed_arrives_and_says_where_it_came_from(hub: Hub, shelf: Path) -> None:
    arrival = pull_repository("ann/tiny")
    folder = shelf / "models" / "ann--tiny"
    assert arrival.is_new
    assert find_model("ann/tiny") == find_model("tiny") == arrival.model.path == folder
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    assert json.loads(found.pop("SOURCE.json")) == {
        "name": "ann/tiny",
        "repository": "ann/tiny",
        "revision": None,
        "commit": COMMIT,
        "file": None,
        "sha256": {"model.safetensors": hashlib.sha256(WEIGHTS).hexdigest()},
        "licence": "mit",
        "task": "fill-mask",
    }
    assert found == {name: FILES[name] for name in NEEDED}
    assert sorted(hub.fetched) == NEEDED
    assert hub.described == ["", f"/tree/{COMMIT}"]  # the very commit that was looked up
    assert not (shelf / "incoming" / "ann--tiny").exists()


def test_what_is_there_is_fetched_again_by_force_only(hub: Hub) -> None:
    pull_repository("ann/tiny")
    assert not pull_repository("ann/tiny").is_new
    assert not pull_repository("ann/tiny", revision=COMMIT).is_new
    assert len(hub.fetched) == 4
    assert mistake("ann/tiny", revision="v2") == (
        "ann/tiny is on the shelf already, pulled with no --revision; --force replaces it."
    )
    assert pull_repository("ann/tiny", revision="v2", force=True).is_new
    assert len(hub.fetched) == 8
    assert "pulled with --revision v2" in mistake("ann/tiny", revision="v3")


def test_one_gguf_file_is_what_loads(hub: Hub, shelf: Path) -> None:
    hub.content |= {"tiny[1].Q4.gguf": b"GGUF4", "tiny.Q8.gguf": b"GGUF8"}
    pull_repository("ann/tiny", file="*Q4*")
    assert find_model("tiny") == shelf / "models" / "ann--tiny" / "tiny[1].Q4.gguf"
    assert sorted(hub.fetched) == ["README.md", "tiny[1].Q4.gguf"]


def test_a_download_that_stops_keeps_the_files_that_have_arrived(hub: Hub, shelf: Path) -> None:
    hub.status["model.safetensors"] = 410
    assert mistake("ann/tiny").startswith("The hub did not give ann/tiny (")
    assert not (shelf / "models").exists()
    hub.status.clear()
    pull_repository("ann/tiny")
    assert sorted(hub.fetched) == NEEDED


def test_what_an_earlier_try_wanted_does_not_stay(
    hub: Hub, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One after the other by their names, so that the file is there when README.md fails.
    in_order = partial(huggingface_hub.snapshot_download, max_workers=1)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", in_order)
    hub.content = {"A.gguf": b"GGUF", **hub.content}
    hub.status["README.md"] = 410
    mistake("ann/tiny", file="A.gguf")
    assert hub.fetched == ["A.gguf"]
    hub.status.clear()
    folder = pull_repository("ann/tiny").model.folder
    assert not (folder / "A.gguf").exists()


def test_a_file_that_is_not_what_the_hub_says_is_refused(
    hub: Hub, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = huggingface_hub.snapshot_download

    def damaged(*arguments: Any, **options: Any) -> None:
        plain(*arguments, **options)
        (options["local_dir"] / "model.safetensors").write_bytes(WEIGHTS.swapcase())

    def cut(*arguments: Any, **options: Any) -> None:
        plain(*arguments, **options)
        (options["local_dir"] / "config.json").write_bytes(b"")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", damaged)
    assert mistake("ann/tiny").startswith("model.safetensors of ann/tiny arrived damaged or is")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", cut)
    assert mistake("ann/tiny").startswith("config.json of ann/tiny did not arrive as a whole; run")
    assert not (shelf / "models").exists()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", plain)
    pull_repository("ann/tiny")


def test_pickles_alone_are_refused_before_anything_is_fetched(hub: Hub, shelf: Path) -> None:
    del hub.content["model.safetensors"]
    assert "only as pickles (pytorch_model.bin)" in mistake("ann/tiny")
    assert hub.fetched == []
    assert not shelf.exists()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("RepoNotFound", "There is no model ann/tiny on the hub, or it is private; check the"),
        ("GatedRepo", "ann/tiny is given only to those who have agreed to its terms; agree to"),
        ("RevisionNotFound", "ann/tiny has no revision 'v9'; check --revision."),
        ("", ""),
    ],
)
def test_what_the_hub_refuses_is_said(hub: Hub, code: str, sentence: str) -> None:
    if code:
        hub.code = code
        assert mistake("ann/tiny", revision="v9").startswith(sentence)
    else:
        assert "no model ann/none on the hub" in mistake("ann/none")


def test_no_network_is_said(monkeypatch: pytest.MonkeyPatch, shelf: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        use(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}")
        sentence = mistake("ann/tiny")
    assert sentence.startswith("The hub did not give ann/tiny (ConnectError: ")
    assert sentence.endswith("which keeps the files that have arrived.")
    assert not shelf.exists()


def test_a_disk_that_fails_is_not_the_hub_s_fault(hub: Hub, monkeypatch: Any, shelf: Path) -> None:
    def full(*_: object, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    assert mistake("ann/tiny").startswith(f"The disk of {shelf} is too full for ann/tiny; free")


def test_the_library_is_needed_only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface.importlib.util, "find_spec", lambda name: None)
    assert mistake("ann/tiny").endswith('needs huggingface_hub; run: pip install "qkv[hub]".')


@pytest.mark.parametrize("name", ["a/b/c", "/etc/passwd", "../tiny", "ann/..", "a--b/c", "a b/c"])
def test_what_is_no_hub_name_is_said(name: str) -> None:
    assert mistake(name) == f"{name} is no name on the hub; such a name is owner/name."
