"""Each mistake a person can make: one sentence with the file or value, exit code 2."""

import errno
from pathlib import Path

import pytest

import qkv as package
from tests.journeys.conftest import Command
from tests.run.tiny import write_recipe


@pytest.mark.parametrize("writer", ["qkv.weights.save_file", "pathlib.Path.write_text"])
def test_a_full_disk(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "run"
    assert qkv("train", recipe, "--out", out).code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    said = package.load(out).translate("3 1 4")

    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writer, full)
        more = ["--resume", "--set", "train.steps=20"]
        mistake = qkv("train", recipe, "--out", out, *more).mistake
    assert mistake.startswith(f"The disk is full ({out}")
    assert "--resume" in mistake
    assert "\n" not in mistake
    after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()  # nothing half-written lies about
    changed = {path.name for path in before if before[path] != after[path]}
    assert changed <= {"log.jsonl", "recipe.toml"}
    assert package.load(out).translate("3 1 4") == said
    assert qkv("train", recipe, "--out", out, *more).code == 0


def test_a_run_folder_without_a_name_is_refused(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--out "$RUN"` with an unset variable must not fill the current folder."""
    recipe = write_recipe(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for command in (["train", recipe], ["demo"]):
        answer = qkv(*command, "--out", "")
        assert answer.code == 2
        assert "the name is empty; write one, or leave the option out" in answer.err
    assert not list(Path().iterdir())


def test_recipes_that_are_none(qkv: Command, tmp_path: Path) -> None:
    assert "There is no recipe none.toml; check the path" in qkv("train", "none.toml").mistake
    assert f"{tmp_path} is a directory" in qkv("train", tmp_path).mistake
    (tmp_path / "bad.toml").write_text("[train\nsteps = 3")
    mistake = qkv("train", tmp_path / "bad.toml").mistake
    assert f"{tmp_path / 'bad.toml'} is not valid TOML" in mistake
    assert "line 1" in mistake
    (tmp_path / "bad.toml").write_bytes(b'task = "\xff"')
    mistake = qkv("train", tmp_path / "bad.toml").mistake
    assert f"{tmp_path / 'bad.toml'} is not UTF-8 text (byte 8)" in mistake
    (tmp_path / "empty.toml").write_text("")
    assert "no pairs are given" in qkv("train", tmp_path / "empty.toml").mistake


def test_a_folder_that_may_not_be_written(qkv: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = qkv("train", write_recipe(tmp_path), "--out", tmp_path / "file" / "run")
    assert str(tmp_path / "file") in answer.mistake
