"""A whole run, from a recipe to a model folder with its scores."""

from __future__ import annotations

import math
import shutil
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
from tests.run.common import read_log, silence
from tests.run.tiny import (
    LEARNS,
    learned,
    recipe,
    run,
    sources,
    spell,
    write_pairs,
    write_recipe,
)


def test_a_run_leaves_its_recipe_log_scores_and_model(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done = learned(tmp_path_factory)
    folder, config = done.folder, load_recipe(done.folder / "recipe.toml")
    assert config == recipe(folder.parent, **LEARNS)
    log = read_log(folder)
    assert [record["step"] for record in log] == list(range(1, 351))
    assert all({"step", "loss", "lr", "tokens_per_second"} <= record.keys() for record in log)
    measured = [record for record in log if "valid_loss" in record]
    assert [record["step"] for record in measured] == [100, 200, 300, 350]
    assert all({"bleu", "exact_match"} <= record.keys() for record in measured)
    assert measured[-1]["valid_loss"] < 0.3 < measured[0]["valid_loss"] < log[0]["loss"]
    assert done.scores["valid"][2].value >= 85
    assert done.state.step == 350


def test_the_readme_says_what_it_is_and_how_it_scored(tmp_path: Path) -> None:
    write_pairs(tmp_path / "test.tsv", 20, seed=9)
    done = run(tmp_path, data_licence="CC0", data_test_pairs=str(tmp_path / "test.tsv"))
    card = (done.folder / "README.md").read_text()
    n_parameters = sum(p.numel() for p in done.result.model.parameters())
    assert card.startswith("# run: a translation model\n")
    assert f"{n_parameters:,} parameters" in card
    assert f"{tmp_path / 'digits.tsv'} (licence: CC0)" in card
    for split in ("valid", "test"):
        for score in done.scores[split]:
            assert str(score) in card
    assert "tok:13a" in card
    assert len(done.pairs["test"]) == 20


def test_the_translator_of_a_run_is_its_best_model(tmp_path: Path) -> None:
    done = run(tmp_path)
    saved = read_tensors(done.folder / "model.safetensors")
    for name, parameter in done.result.model.named_parameters():
        assert torch.equal(parameter.detach(), saved[name])


def test_a_run_depends_on_its_seed_alone(tmp_path: Path) -> None:
    one, same = run(tmp_path, "one"), run(tmp_path, "same")
    other = run(tmp_path, "other", train_seed=1)
    weights = [read_tensors(done.folder / "model.safetensors") for done in (one, same, other)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert any(not torch.equal(tensor, weights[2][name]) for name, tensor in weights[0].items())


@pytest.mark.parametrize(
    "differences",
    [
        {"tokenizer_shared": False},
        {"tokenizer_kind": "char", "tokenizer_vocab_size": 300},
        {"train_packing": "on", "model_max_length": 64},
        {"train_precision": "bfloat16"},
        {"train_accumulate": 3, "train_average": 1},
        {"train_valid_bleu": False},
        {"model_preset": "transformer-tiny", "model_norm": "rms"},
    ],
)
def test_every_kind_of_run_ends_in_a_model(tmp_path: Path, differences: dict) -> None:
    done = run(tmp_path, **differences)
    assert all(math.isfinite(record["loss"]) for record in read_log(done.folder))
    assert isinstance(qkv.load(done.folder).translate("3 1"), str)
    if differences.get("tokenizer_shared") is False:
        assert (done.folder / "source_tokenizer.json").exists()
        assert done.result.model.config.tie == "output"


def test_packed_batches_fit_a_model_of_any_length(tmp_path: Path) -> None:
    found = run(tmp_path, train_packing="on", model_max_length=32)
    assert found.state.step > 0


def test_packed_and_padded_text_have_the_same_loss(tmp_path: Path) -> None:
    """Without dropout, and in one batch: the first step sees the same pairs either way."""
    settings = {
        "train_steps": 1,
        "train_batch_tokens": 4000,
        "model_dropout": 0.0,
        "model_max_length": 64,
    }
    write_pairs(tmp_path / "digits.tsv", 100)
    losses = [
        read_log(run(tmp_path, packing, train_packing=packing, **settings).folder)[0]["loss"]
        for packing in ("on", "off")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_validation_text_over_the_model_s_limit_does_not_stop_a_run(tmp_path: Path) -> None:
    lines = [*sources(20, seed=5), " ".join("1" * 50), ""]
    text = "".join(f"{line}\t{spell(line)}\n" for line in lines)
    (tmp_path / "valid.tsv").write_text(text)
    done = run(tmp_path, data_valid_pairs=str(tmp_path / "valid.tsv"))
    assert len(done.pairs["valid"]) == 22


def test_curves_are_written_where_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    done = run(tmp_path, train_tensorboard=True)
    assert list((done.folder / "curves").glob("events.out.tfevents.*"))


def test_what_was_dropped_and_how_it_goes_is_told(tmp_path: Path) -> None:
    (tmp_path / "digits.tsv").write_text(write_pairs(tmp_path / "a.tsv").read_text() + "1\t\n")
    file = StringIO()
    train(recipe(tmp_path), tmp_path / "run", console=Console(file=file, width=40))
    said = file.getvalue().splitlines()
    assert any("dropped 1 empty target" in line for line in said)
    assert any("parameters, vocabulary 60, on cpu" in line for line in said)
    assert any(line.startswith("step 12/12  loss ") and "BLEU" in line for line in said)


def test_a_run_on_shuffled_pairs_is_told_that_it_does_not_use_the_source(tmp_path: Path) -> None:
    write_pairs(tmp_path / "digits.tsv", 300, shuffled=True)
    file = StringIO()
    settings = {**LEARNS, "train_steps": 100, "train_valid_every": 100, "train_average": 1}
    train(recipe(tmp_path, **settings), tmp_path / "run", console=Console(file=file))
    assert "warning: the model does not use the source" in file.getvalue()
    assert "aligned" in file.getvalue()


def test_a_run_whose_rate_is_too_high_is_told_that_it_does_not_learn(tmp_path: Path) -> None:
    file = StringIO()
    settings = {"train_steps": 40, "train_valid_every": 40, "train_lr": 3.0, "train_average": 1}
    train(recipe(tmp_path, **settings), tmp_path / "run", console=Console(file=file))
    assert "warning: the model does not learn" in file.getvalue()


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
    assert qkv.train(path, "again", console=silence()).folder == Path("again")
    from qkv.training import cross_entropy

    assert callable(cross_entropy)
    assert qkv.train(path, "once more", console=silence()).state.step == 2
