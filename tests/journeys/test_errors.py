"""Each mistake a person can make: one sentence with the file or value, exit code 2."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import qkv as package
from tests.journeys.conftest import Command, mistakes_in_training
from tests.run.tiny import write_recipe


@pytest.fixture
def train(qkv: Command, tmp_path: Path) -> Callable[..., str]:
    return mistakes_in_training(qkv, write_recipe(tmp_path), tmp_path / "run")


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A model folder of one's own to damage."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(model / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_truncated_or_missing_file(qkv: Command, copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert str(path) in qkv("translate", "--model", copy, "1").mistake
    path.unlink()
    mistake = qkv("translate", "--model", copy, "1").mistake
    assert str(copy) in mistake
    assert name in mistake


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.device=tpu", "Unknown device 'tpu'"),
        ("tokenizer.vocab_size=10", "vocab_size is 10, but must be at least 16"),
        ("data.pairs=none.tsv", "There is no file none.tsv"),
        ("data.pairs=[]", "no pairs are given"),
        ("data.corpus=demo", "has its own text, but pairs is given too"),
    ],
)
def test_settings_that_cannot_be(train, change: str, words: str) -> None:
    assert words in train(change)


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


def test_scores_of_no_text_and_config_of_another_tool(qkv: Command, copy: Path) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": "marian", "d_model": 512}))
    mistake = qkv("translate", "--model", copy, "1").mistake
    expected = f"{copy / 'config.json'} does not say 'encoder_attention_heads'; fetch it again."
    assert mistake == expected
    (copy / "config.json").write_text(json.dumps({"d_model": 512}))
    mistake = qkv("translate", "--model", copy, "1").mistake
    assert mistake.startswith(
        f"{copy / 'config.json'} is not a qkv model's config: it has no 'task'; "
    )
    assert mistake.endswith(
        "name a model folder of qkv, or one of Hugging Face's, with a 'model_type'."
    )
    (copy / "model.bin").write_bytes(b"")
    mistake = qkv("translate", "--model", copy, "1").mistake
    assert mistake.endswith("so name the folder that it was converted from.")
