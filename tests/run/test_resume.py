"""Going on with a run: refused where it would not be exact, exact where it is not refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.config import load_recipe
from qkv.errors import UserError
from qkv.run.train import train
from qkv.run import translate as translating
from qkv.training import Trainer
from tests.run.common import Killed, everything, read_log, silence
from tests.run.tiny import RUNS, recipe, run, write_pairs

killed_at, resumed = RUNS.killed_at, RUNS.resumed


def job(folder: Path) -> translating.Translation:
    return translating.Translation(RUNS.plan(folder))


@pytest.mark.parametrize("step", [2, 9])
@pytest.mark.parametrize(
    "settings",
    [
        {"train_average": 3},
        {"train_accumulate": 2, "model_dropout": 0.3, "model_attention_dropout": 0.2},
        {"tokenizer_shared": False, "train_steps": 14},
        {"train_steps": 25, "train_batch_tokens": 500, "train_precision": "bfloat16"},
    ],
)
def test_a_run_killed_and_resumed_ends_bit_for_bit_the_same(
    tmp_path: Path, step: int, settings: dict
) -> None:
    whole = run(tmp_path, "whole", **settings).folder
    killed_at(step, tmp_path, **settings)
    assert everything(resumed(tmp_path, **settings)) == everything(whole)


def test_the_runs_above_cross_the_border_of_an_epoch(tmp_path: Path) -> None:
    labels = job(tmp_path).stream.items.target_sizes.sum()
    assert labels < 500 * 9  # 25 steps of 500 tokens are more than two epochs, 9 more than one


def test_the_vocabulary_of_a_resumed_run_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed_at(7, tmp_path)

    def never(*arguments: Any) -> None:
        raise AssertionError("the tokenizer is trained again")

    monkeypatch.setattr(translating, "train_tokenizers", never)
    assert (resumed(tmp_path) / "tokenizer.json").exists()
    assert folder.joinpath("tokenizer.json").read_text() == (
        folder.joinpath("checkpoints", "tokenizer.json").read_text()
    )


def test_resuming_where_nothing_is_starts(tmp_path: Path) -> None:
    assert everything(resumed(tmp_path, "new")) == everything(run(tmp_path, "run").folder)


@pytest.mark.parametrize(
    ("difference", "named"),
    [
        ({"train_seed": 1}, "train.seed differs"),
        ({"train_batch_tokens": 201}, "train.batch_tokens differs"),
        ({"model_d_ff": 64}, "model.d_ff differs"),
        ({"model_preset": "transformer-tiny"}, "model.preset differs"),
        ({"tokenizer_vocab_size": 61}, "tokenizer.vocab_size differs"),
        ({"data_max_length": 29}, "data.max_length differs"),
    ],
)
def test_a_changed_recipe_is_refused_by_name(tmp_path: Path, difference: dict, named: str) -> None:
    folder = killed_at(7, tmp_path)
    before = (folder / "recipe.toml").read_text()
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
    with pytest.raises(UserError, match="holds a run already; go on with --resume"):
        run(tmp_path)
    assert everything(tmp_path / "run") == before


def test_a_mistake_in_the_data_leaves_no_run_behind(tmp_path: Path) -> None:
    """The next try, with the mistake corrected, must not be told of a run that never was."""
    with pytest.raises(UserError, match="no file"):
        run(tmp_path, data_pairs=str(tmp_path / "typo.tsv"))
    assert not (tmp_path / "run").exists()
    run(tmp_path)


def test_beginning_anew_replaces_a_run_once_there_is_something_to_keep(tmp_path: Path) -> None:
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


def test_a_truncated_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole").folder
    folder = killed_at(11, tmp_path)
    newest = max((folder / "checkpoints").glob("step-*"))
    assert newest.name == "step-00000010.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert everything(resumed(tmp_path)) == everything(whole)


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    """A vocabulary that is lost and learnt again from another corpus has another size."""
    folder = killed_at(7, tmp_path)
    for name in ("tokenizer.json", "text.json"):
        (folder / "checkpoints" / name).unlink()
    other = "".join(f"{'a ' * n}\t{'b ' * n}\n" for n in range(1, 25))
    (tmp_path / "digits.tsv").write_text(other)
    with pytest.raises(UserError, match=r"does not fit its config: .* should be"):
        resumed(tmp_path)


@pytest.mark.parametrize("name", ["vocab_size", "pad_id", "eos_id"])
def test_what_follows_from_the_tokenizer_cannot_be_set(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"\[model\]: {name} follows from the tokenizer"):
        run(tmp_path, **{f"model_{name}": 5})


def test_text_longer_than_the_model_is_a_contradiction(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.max_length \(33\) is over model.max_length \(32\)"):
        run(tmp_path, data_max_length=33)


def test_a_measure_that_is_not_taken_cannot_be_gone_by(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="metric = 'bleu' needs valid_bleu"):
        run(tmp_path, train_metric="bleu", train_valid_bleu=False)


def test_validation_text_is_never_trained_on(tmp_path: Path) -> None:
    write_pairs(tmp_path / "digits.tsv", 300)
    text = job(tmp_path).split
    assert not {source for source, _ in text.train} & {source for source, _ in text.valid}


def test_changed_text_is_not_gone_on_with(tmp_path: Path) -> None:
    write_pairs(tmp_path / "digits.tsv", 300)
    folder = killed_at(7, tmp_path)
    write_pairs(tmp_path / "digits.tsv", 301)
    with pytest.raises(UserError, match=f"The text has changed since the run in {folder} began"):
        resumed(tmp_path)


def test_a_run_without_a_checkpoint_begins_again_with_what_it_is_told_now(tmp_path: Path) -> None:
    write_pairs(tmp_path / "digits.tsv", 300)
    folder = killed_at(1, tmp_path)
    assert not list((folder / "checkpoints").glob("*.safetensors"))
    write_pairs(tmp_path / "digits.tsv", 301)
    settings = {"tokenizer_vocab_size": 50}
    fresh = run(tmp_path, "fresh", **settings).folder
    assert everything(resumed(tmp_path, **settings)) == everything(fresh)
