"""A whole run, from a recipe to a model folder with its scores."""

import shutil
import tomllib
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

import qkv
from qkv.config import load_recipe
from qkv.errors import UserError
from qkv.run.train import train
from qkv.weights import read_tensors
from tests.run.common import read_log, silence, validations
from tests.run.tiny import LEARNS, learned, recipe, run, sources, spell, write_pairs, write_recipe


def test_a_run_leaves_its_recipe_log_scores_and_model(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done = learned(tmp_path_factory)
    folder, config = done.folder, load_recipe(done.folder / "recipe.toml")
    assert config == recipe(folder.parent, **LEARNS)
    log, measured = read_log(folder), validations(folder)
    assert all({"step", "loss", "lr", "tokens_per_second"} <= record.keys() for record in log)
    assert [record["step"] for record in measured] == [100, 200, 300, 350]
    assert all({"bleu", "exact_match"} <= record.keys() for record in measured)
    assert measured[-1]["valid_loss"] < 0.3 < measured[0]["valid_loss"] < log[0]["loss"]
    assert done.scores["valid"][2].value >= 85
    assert done.state.step == 350


def test_validation_text_over_the_model_s_limit_does_not_stop_a_run(tmp_path: Path) -> None:
    lines = [*sources(20, seed=5), " ".join("1" * 50)]
    text = "".join(f"{line}\t{spell(line)}\n" for line in lines)
    (tmp_path / "valid.tsv").write_text(f"{text}\tseven\n")
    done = run(tmp_path, data_valid_pairs=str(tmp_path / "valid.tsv"))
    assert len(done.splits.valid) == 22


def test_curves_are_written_where_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    done = run(tmp_path, train_tensorboard=True)
    assert list((done.folder / "curves").glob("events.out.tfevents.*"))


def test_what_was_dropped_and_how_it_goes_is_told(tmp_path: Path) -> None:
    (tmp_path / "digits.tsv").write_text(write_pairs(tmp_path / "a.tsv").read_text() + "1\t\n")
    file = StringIO()
    train(recipe(tmp_path), tmp_path / "run", console=Console(file=file, width=40))
    said = file.getvalue().splitlines()
    assert any("dropped 1 with an empty target" in line for line in said)
    assert any("parameters, vocabulary 60, on cpu" in line for line in said)
    assert any(line.startswith("step 12/12  loss ") and "BLEU" in line for line in said)


def test_a_run_shorter_than_its_warm_up_says_so(tmp_path: Path) -> None:
    for warmup in (12, 13):
        file, folder = StringIO(), tmp_path / str(warmup)
        train(recipe(tmp_path, train_warmup=warmup), folder, console=Console(file=file, width=400))
        assert ("(train.warmup is 13): lower train.warmup" in file.getvalue()) == (warmup == 13)


@pytest.mark.parametrize(
    ("shuffled", "settings", "words"),
    [
        (True, {**LEARNS, "train_steps": 100}, "does not use the source"),
        (False, {"train_steps": 40, "train_lr": 3.0}, "does not learn"),
    ],
)
def test_a_run_that_fails_to_learn_is_warned_of(
    tmp_path: Path, shuffled: bool, settings: dict, words: str
) -> None:
    write_pairs(tmp_path / "digits.tsv", 300, shuffled=shuffled)
    file = StringIO()
    settings = {**settings, "train_valid_every": settings["train_steps"], "train_average": 1}
    train(recipe(tmp_path, **settings), tmp_path / "run", console=Console(file=file))
    assert f"warning: the model {words}" in file.getvalue()


def test_a_run_that_learns_is_told_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    said = (learned(tmp_path_factory).folder.parent / "said.txt").read_text()
    assert "step 350/350" in said
    assert "warning" not in said


def test_nan_stops_a_run_and_its_best_model_stays(tmp_path: Path) -> None:
    settings = {"train_average": 1, "train_clip": 0.0}
    whole = run(tmp_path, "whole", **settings)
    folder = tmp_path / "run"
    shutil.copytree(whole.folder, folder)
    before = read_tensors(folder / "model.safetensors")
    # From here on the rate leaves the range of float32, which no clipping could mend.
    text = (folder / "recipe.toml").read_text().replace("lr = 0.01", "lr = 1e+39")
    (folder / "recipe.toml").write_text(text)
    wild = recipe(tmp_path, train_steps=40, train_lr=1e39, **settings)
    with pytest.raises(UserError, match=r"became (nan|inf) at step 1\d \(learning rate"):
        train(wild, folder, resume=True, console=silence())
    after = read_tensors(folder / "model.safetensors")
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert isinstance(qkv.load(folder).translate("3 1"), str)
    assert (folder / "checkpoints" / "step-00000012.safetensors").exists()


def test_python_trains_from_a_file_too_and_more_than_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`qkv.train` is a function even after the room of that name has been imported."""
    path = write_recipe(tmp_path, train_steps=2)
    monkeypatch.chdir(tmp_path)
    done = qkv.train(str(path), console=silence())
    assert done.folder == Path("runs/digits")
    values = tomllib.loads(path.read_text())
    assert qkv.train(values, "a dict", console=silence()).state.step == 2
    with pytest.raises(UserError, match="A recipe is a file or a dictionary of its values"):
        qkv.train(None)  # type: ignore[arg-type]
    assert qkv.train(path, "again", console=silence()).folder == Path("again")
    from qkv.training import cross_entropy

    assert callable(cross_entropy)
    assert qkv.train(path, "once more", console=silence()).state.step == 2
