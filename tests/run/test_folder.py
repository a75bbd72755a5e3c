"""The run folder: whose it is, and going on with the run in it where that is exact."""

import dataclasses
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.config import SECTIONS, DataConfig, Recipe, load_recipe, recipe_from, to_toml
from qkv.errors import UserError
from qkv.run.folder import locked
from qkv.run.train import train
from qkv.training import Trainer
from tests.run import classify_tiny, language_tiny
from tests.run.common import Killed, everything, read_log, silence
from tests.run.tiny import RUNS, recipe, run, write_pairs

killed_at, resumed = RUNS.killed_at, RUNS.resumed


def test_two_runs_cannot_write_to_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        words = rf"Another run is writing to .*run \(process {os.getpid()}\); wait until it ends"
        with pytest.raises(UserError, match=words):
            run(tmp_path)
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    run(tmp_path, train_steps=1)


@pytest.mark.parametrize("exists", [False, True])
def test_there_must_be_a_run_to_resume(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "cut").mkdir()
    with pytest.raises(UserError, match=rf"There is no run in {tmp_path / 'cut'} to resume"):
        resumed(tmp_path)


def test_the_vocabulary_of_a_resumed_run_is_its_own(tmp_path: Path) -> None:
    settings = {"tokenizer_path": str(tmp_path / "tokenizer.json")}
    run(tmp_path, "base", train_steps=1).result.tokenizers.target.save(tmp_path / "tokenizer.json")
    folder = killed_at(7, tmp_path, **settings)
    (tmp_path / "tokenizer.json").unlink()
    resumed(tmp_path, **settings)
    saved = [path.read_text() for path in sorted(folder.rglob("tokenizer.json"))]
    assert len(saved) == 2 and saved[0] == saved[1]


def test_a_changed_recipe_is_refused_by_name(tmp_path: Path) -> None:
    folder = killed_at(7, tmp_path)
    before = (folder / "recipe.toml").read_text()
    assert before.startswith("format = 1\n")  # and what differs from the defaults
    assert "beams" not in before and "label_smoothing" not in before
    for difference, named in (
        ({"train_seed": 1}, "train.seed differs"),
        ({"model_d_ff": 64}, "model.d_ff differs"),
        ({"model_preset": "transformer-tiny"}, "model.preset differs"),
        ({"tokenizer_vocab_size": 61}, "tokenizer.vocab_size differs"),
        (
            {"data_max_length": 29, "train_batch_tokens": 201},
            "data.max_length, train.batch_tokens differs",
        ),
    ):
        with pytest.raises(UserError) as caught:
            resumed(tmp_path, **difference)
        assert str(caught.value).startswith(named)
        assert str(folder / "recipe.toml") in str(caught.value)
        assert (folder / "recipe.toml").read_text() == before


def test_a_longer_run_may_be_asked_for(tmp_path: Path) -> None:
    run(tmp_path, "cut", train_patience=3)
    longer = {"train_steps": 18, "train_patience": 0, "train_checkpoint_every": 100}
    folder = resumed(tmp_path, **longer)
    assert [record["step"] for record in read_log(folder)] == list(range(1, 19))
    assert load_recipe(folder / "recipe.toml") == recipe(tmp_path, **longer)


def test_a_run_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    before = everything(run(tmp_path).folder)
    demo = replace(recipe(tmp_path), data=DataConfig(corpus="demo"))
    for other, replaces in ((recipe(tmp_path), False), (demo, True)):
        with pytest.raises(UserError, match="holds a run already; resume it"):
            train(other, tmp_path / "run", replace=replaces, console=silence())
    assert everything(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["README.md", "config.json", "tokenizer.json"])
def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "run" / name
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UserError, match=f"{name} belongs to something else"):
        run(tmp_path)
    assert mine.read_text() == "mine"
    assert [path.name for path in mine.parent.iterdir()] == [name]


def test_a_mistake_in_the_data_leaves_no_run_behind(tmp_path: Path) -> None:
    """The next try, with the mistake corrected, is not refused because of a run that never was."""
    with pytest.raises(UserError, match="no file"):
        run(tmp_path, data_pairs=str(tmp_path / "typo.tsv"))
    assert not (tmp_path / "run").exists()
    run(tmp_path, train_steps=1)


def test_a_run_without_a_checkpoint_starts_again_with_the_recipe_and_data_of_now(
    tmp_path: Path,
) -> None:
    write_pairs(tmp_path / "digits.tsv", 300)
    for name in ("cut", "other"):
        folder = killed_at(1, tmp_path, name)
        assert not list((folder / "checkpoints").glob("*.safetensors"))
    write_pairs(tmp_path / "digits.tsv", 301)
    settings = {"tokenizer_vocab_size": 50}
    fresh = everything(run(tmp_path, "fresh", **settings).folder)
    assert everything(resumed(tmp_path, "cut", **settings)) == fresh
    assert everything(run(tmp_path, "other", **settings).folder) == fresh  # nor must it be resumed


def test_a_run_is_replaced_once_there_is_a_model_to_save(tmp_path: Path) -> None:
    folder = run(tmp_path, tokenizer_shared=False).folder
    old = qkv.load(folder).translate("3 1 4")
    before = everything(folder)
    broken = recipe(tmp_path, data_pairs=str(tmp_path / "typo.tsv"))
    with pytest.raises(UserError, match="no file"):
        train(broken, folder, replace=True, console=silence())
    assert everything(folder) == before

    other = recipe(tmp_path, model_d_model=32, tokenizer_vocab_size=70)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "validate", lambda trainer: (_ for _ in ()).throw(Killed()))
        train(other, folder, replace=True, console=silence())
    assert qkv.load(folder).translate("3 1 4") == old  # the model before is whole

    train(other, folder, replace=True, console=silence())
    assert qkv.load(folder).model.config.d_model == 32
    assert qkv.load(folder).tokenizers.shared
    assert [record["step"] for record in read_log(folder)] == list(range(1, 13))


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """One that is lost and learned again from other data has another size."""
    folder = killed_at(7, tmp_path)
    for name in ("tokenizer.json", "data.json"):
        (folder / "checkpoints" / name).unlink()
    other = "".join(f"{'a ' * n}\t{'b ' * n}\n" for n in range(1, 25))
    (tmp_path / "digits.tsv").write_text(other)
    with pytest.raises(UserError, match=r"does not fit its config: .* should be"):
        resumed(tmp_path)


def as_written_earlier(recipe: Recipe, **data: Any) -> str:
    """A run's recipe.toml before it had a format number: every setting, whatever the task reads."""
    values = {name: dataclasses.asdict(getattr(recipe, name)) for name in SECTIONS}
    former = {"text_field": "text", "text_fields": [], "shards": ""}
    former |= {"source_field": "source", "target_field": "target"}
    values["data"] |= {**former, **data}
    values["train"] |= {"optimizer": {"adamw": "adam"}[recipe.train.optimizer]}
    return to_toml(
        {"task": recipe.task, **values, "model": {"preset": recipe.preset, **recipe.model}}
    )


@pytest.mark.parametrize("module", [RUNS, language_tiny.RUNS, classify_tiny.RUNS])
def test_a_recipe_of_an_earlier_version_is_read(tmp_path: Path, module: Any) -> None:
    path, made = tmp_path / "recipe.toml", module.recipe(tmp_path)
    path.write_text(as_written_earlier(made))
    assert load_recipe(path) == made
    path.write_text(as_written_earlier(made, text_field="body", text_fields=["a", "b"]))
    columns = {"translate": (), "generate": ("body",), "classify": ("a", "b")}
    assert load_recipe(path).data.text_field == columns[made.task]


def test_examples_columns_may_have_their_former_name() -> None:
    made = recipe_from({"task": "classify", "data": {"text_fields": ["a", "b"]}})
    assert made.data.text_field == ("a", "b")


@pytest.mark.parametrize("n_moved", [1, 2])
def test_a_kill_while_the_first_model_is_moved_into_place_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_moved: int
) -> None:
    """With no better validation after it, nothing else would write the model again."""
    settings = {"train_valid_every": 4, "train_checkpoint_every": 100, "train_steps": 4}
    expected = run(tmp_path, "whole", **settings)
    replace, moved = Path.replace, []

    def die(self: Path, target: Path) -> Path:
        if Path(target).parent == tmp_path / "cut" and self.parent.name.endswith(".writing"):
            if len(moved) == n_moved:
                raise Killed
            moved.append(target)
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "replace", die)
        run(tmp_path, "cut", **settings)
    assert (tmp_path / "cut" / "model.safetensors").exists()
    assert resumed(tmp_path, "cut", **settings) == tmp_path / "cut"
    assert everything(tmp_path / "cut") == everything(expected.folder)


def test_what_a_killed_run_had_begun_to_write_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    gone = 2**22 + 1  # no process has such a number
    torn = [
        folder / f".model.safetensors.{gone}.writing",
        folder / "checkpoints" / f".step-00000001.safetensors.{gone}.writing",
    ]
    others = [folder / f".notes.txt.{os.getppid()}.writing", folder / "model.safetensors"]
    for path in (*torn, *others):
        path.write_bytes(b"")
    with locked(folder):
        assert not any(path.exists() for path in torn)
        assert all(path.exists() for path in others)
