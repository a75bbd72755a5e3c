"""What the loop keeps, when it stops, and what it tells, with an evaluation told beforehand."""

import math
from pathlib import Path

import pytest
import torch

from qkv.errors import UserError
from qkv.training.checkpoint import newest_checkpoints, read_progress
from qkv.weights import read_tensors
from tests.training.helpers import assert_equal, copy_of, listed, small_trainer


def test_every_step_is_told_once_with_its_loss_rate_and_speed(tmp_path: Path) -> None:
    trainer, listener, _ = small_trainer(tmp_path, steps=23, valid_every=7)
    trainer.run()
    assert [record["step"] for record in listener.records] == list(range(1, 24))
    for record in listener.records:
        assert math.isfinite(record["loss"])
        assert record["lr"] > 0
        assert record["tokens_per_second"] > 0
        measured = {"valid_loss", "wrong_source_loss", "bleu"}
        assert measured <= record.keys() or not measured & record.keys()
    told = [record["step"] for record in listener.records if "valid_loss" in record]
    assert told == [7, 14, 21, 23]  # and the last, wherever the run ends


@pytest.mark.parametrize("steps", [10, 20])
def test_the_last_validation_is_told_even_where_a_report_falls_on_the_last_step(
    tmp_path: Path, steps: int
) -> None:
    trainer, listener, _ = small_trainer(tmp_path, steps=steps, valid_every=7, checkpoint_every=10)
    trainer.run()
    assert "valid_loss" in listener.records[-1]


def test_it_learns_what_it_is_shown(tmp_path: Path) -> None:
    trainer, listener, _ = small_trainer(tmp_path, steps=150, valid_every=1000, lr=0.02)
    trainer.run()
    assert listener.records[-1]["loss"] < 0.7 * listener.records[0]["loss"]


@pytest.mark.parametrize(
    ("metric", "losses", "bleu", "stopped", "best", "n_kept"),
    [
        ("loss", [5, 4, 3, 3, 3.5, 4, 1], [0], 20, 12, 3),  # an equal one is no new best
        ("bleu", [1], [1, 2, 9, 8, 9, 7, 10], 20, 12, 3),
        ("loss", [5, 4, 4.5, 3.9, 3.8, 3.7, 3.6], [0], 28, 28, 6),
    ],
)
def test_it_stops_when_patience_is_used_up(
    tmp_path: Path, metric, losses, bleu, stopped, best, n_kept
) -> None:
    trainer, _, kept = small_trainer(
        tmp_path, listed(losses, bleu), steps=28, metric=metric, patience=2, average=1
    )
    progress = trainer.run()
    assert (progress.step, progress.best_step) == (stopped, best)
    assert len(kept) == n_kept


def test_without_patience_it_runs_to_the_end(tmp_path: Path) -> None:
    trainer, _, kept = small_trainer(tmp_path, listed([1, 2]), steps=16, patience=0, average=1)
    assert trainer.run().step == 16
    assert len(kept) == 1


def test_time_is_a_limit_too(tmp_path: Path) -> None:
    trainer, listener, kept = small_trainer(tmp_path, steps=100_000, seconds=0.3)
    progress = trainer.run()
    assert 0 < progress.step < 100_000
    assert "valid_loss" in listener.records[-1]
    assert kept


def test_best_and_last_are_both_kept(tmp_path: Path) -> None:
    weights = {}

    def evaluate(model):  # type: ignore[no-untyped-def]
        step = trainer.progress.step
        weights[step] = copy_of(model)
        loss = abs(step - 8) + 1.0
        return {"valid_loss": loss, "wrong_source_loss": loss + 1}

    trainer, _, kept = small_trainer(tmp_path, evaluate, steps=14, average=1)
    trainer.run()
    assert_equal(kept[-1], weights[8])
    newest = newest_checkpoints(tmp_path, 2)
    assert [path.name for path in newest] == [
        "step-00000014.safetensors",
        "step-00000010.safetensors",
    ]
    last = {
        name.removeprefix("model."): tensor
        for name, tensor in read_tensors(newest[0]).items()
        if name.startswith("model.")
    }
    assert_equal(last, weights[14])
    assert read_progress(newest[0]).best_step == 8


@pytest.mark.parametrize("better", [True, False])
def test_the_mean_of_the_last_validations_is_kept_if_it_is_better(
    tmp_path: Path, better: bool
) -> None:
    weights = []

    def evaluate(model):  # type: ignore[no-untyped-def]
        weights.append(copy_of(model))
        loss = 5.0 if len(weights) <= 5 else (4.0 if better else 6.0)
        return {"valid_loss": loss, "wrong_source_loss": loss + 1}

    trainer, listener, kept = small_trainer(tmp_path, evaluate, steps=20, average=3, patience=0)
    trainer.run()
    assert len(weights) == 6  # five validations, then the average
    mean = {
        name: torch.stack([each[name].double() for each in weights[2:5]]).mean(0).float()
        for name in weights[0]
    }
    assert_equal(weights[5], mean)
    assert len(kept) == 1 + better
    if better:
        assert_equal(kept[-1], mean)
    assert "was kept" in listener.said[-1] if better else "no better" in listener.said[-1]


def test_nan_in_the_loss_stops_the_run_and_what_was_saved_stays(tmp_path: Path) -> None:
    trainer, listener, kept = small_trainer(tmp_path, steps=40, average=1, patience=0)
    plain = trainer.loss_sum

    def planted(batch, smoothing):  # type: ignore[no-untyped-def]
        loss = plain(batch, smoothing)
        return loss * math.nan if trainer.progress.step == 13 else loss

    trainer.loss_sum = planted
    with pytest.raises(UserError, match=r"loss became nan at step 13 \(learning rate") as caught:
        trainer.run()
    assert str(tmp_path) in str(caught.value)
    assert all(math.isfinite(record["loss"]) for record in listener.records)
    newest = newest_checkpoints(tmp_path, 1)[0]
    assert newest.name == "step-00000010.safetensors"
    assert all(tensor.isfinite().all() for tensor in read_tensors(newest).values())
    assert all(tensor.isfinite().all() for each in kept for tensor in each.values())


@pytest.mark.parametrize(("step", "kept_step"), [(4, None), (5, None), (12, 10)])
def test_weights_that_a_finite_loss_has_ruined_are_neither_kept_nor_saved(
    tmp_path: Path, step: int, kept_step: int | None
) -> None:
    """The loss before the update is fine; the gradient is not."""
    trainer, _, kept = small_trainer(tmp_path, steps=20, average=1, patience=0)
    plain = trainer.loss_sum

    def planted(batch, smoothing):  # type: ignore[no-untyped-def]
        loss = plain(batch, smoothing)
        if trainer.progress.step == step:
            loss.register_hook(lambda gradient: gradient * math.inf)
        return loss

    trainer.loss_sum = planted
    with pytest.raises(UserError, match=rf"weight became (nan|inf) at step {step} "):
        trainer.run()
    newest = newest_checkpoints(tmp_path, 1)
    assert [read_progress(path).step for path in newest] == ([kept_step] if kept_step else [])
    assert all(tensor.isfinite().all() for each in kept for tensor in each.values())


def test_a_validation_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    trainer, _, kept = small_trainer(tmp_path, listed([math.nan]), steps=20)
    with pytest.raises(UserError, match="validation loss became nan at step 4 "):
        trainer.run()
    assert not kept


def test_a_run_that_does_not_learn_is_told_of_after_its_warm_up(tmp_path: Path) -> None:
    trainer, listener, _ = small_trainer(tmp_path, listed([7.0]), steps=16, patience=0, average=1)
    trainer.frequencies_loss = 6.5
    trainer.run()
    warnings = [sentence for sentence in listener.said if sentence.startswith("warning: ")]
    assert len(warnings) == 3  # at steps 8, 12 and 16; at 4 it is still warming up
    assert "does not learn" in warnings[0]


def test_a_run_that_is_judged_by_its_labels_is_not_told_so(tmp_path: Path) -> None:
    trainer, listener, _ = small_trainer(
        tmp_path,
        lambda _: {"valid_loss": 7.0, "accuracy": 90.0},
        steps=16,
        patience=0,
        average=1,
        metric="accuracy",
    )
    trainer.frequencies_loss = 6.5
    trainer.run()
    assert not [sentence for sentence in listener.said if sentence.startswith("warning: ")]
