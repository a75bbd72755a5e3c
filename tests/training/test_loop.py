"""What the loop keeps, when it stops, and what it reports, with a made-up evaluation."""

import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import UserError
from qkv.training import TrainingInterrupt, loop
from qkv.training.checkpoint import find_checkpoints, read_state
from qkv.weights import read_tensors
from tests.training.helpers import assert_equal, copy_of, listed, small_trainer


def saved_steps(folder: Path) -> list[int]:
    return [read_state(path).step for path in find_checkpoints(folder)[0]]


@pytest.mark.parametrize(("steps", "validated"), [(23, [7, 14, 21, 23]), (20, [7, 14, 20])])
def test_every_step_is_reported_once_with_its_loss_rate_and_speed(
    tmp_path: Path, steps: int, validated: list[int]
) -> None:
    trainer, listener, _ = small_trainer(tmp_path, steps=steps, valid_every=7, checkpoint_every=10)
    trainer.run()
    assert [record["step"] for record in listener.records] == list(range(1, steps + 1))
    for record in listener.records:
        assert math.isfinite(record["loss"])
        assert record["lr"] > 0
        assert record["tokens_per_second"] > 0
        scores = {"valid_loss", "wrong_source_loss", "bleu"}
        assert scores <= record.keys() or not scores & record.keys()
    assert [record["step"] for record in listener.records if "valid_loss" in record] == validated


def test_slow_steps_are_reported_before_ten_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, listener, _ = small_trainer(tmp_path, steps=9, valid_every=9, checkpoint_every=9)
    now = [0.0]
    monkeypatch.setattr("qkv.training.loop.time.perf_counter", lambda: now[0])
    reported, plain = [], trainer.take_step

    def slow(batches: Any) -> None:
        reported.append(len(listener.records))
        now[0] += 4.0
        plain(batches)

    trainer.take_step = slow  # type: ignore[method-assign]
    trainer.run()
    assert reported == [0, 0, 0, 3, 3, 3, 6, 6, 6]


def test_it_learns_what_it_is_shown(tmp_path: Path) -> None:
    trainer, listener, _ = small_trainer(tmp_path, steps=80, valid_every=1000, lr=0.03)
    trainer.run()
    assert listener.records[-1]["loss"] < 0.7 * listener.records[0]["loss"]


@pytest.mark.parametrize(
    ("metric", "losses", "bleu", "patience", "stopped", "best", "n_kept"),
    [
        ("loss", [5, 4, 3, 3, 3.5, 4, 1], [0], 2, 20, 12, 3),  # an equal one is no new best
        ("bleu", [1], [1, 2, 9, 8, 9, 7, 10], 2, 20, 12, 3),
        ("loss", [5, 4, 4.5, 3.9, 3.8, 3.7, 3.6], [0], 2, 28, 28, 6),
        ("loss", [1, 2], [0], 0, 28, 4, 1),
    ],
)
def test_it_stops_when_patience_is_used_up(
    tmp_path: Path, metric, losses, bleu, patience, stopped, best, n_kept
) -> None:
    trainer, _, kept = small_trainer(
        tmp_path, listed(losses, bleu), steps=28, metric=metric, patience=patience, average=1
    )
    state = trainer.run()
    assert (state.step, state.best_step, len(kept)) == (stopped, best, n_kept)


def test_time_is_a_limit_too(tmp_path: Path) -> None:
    trainer, listener, kept = small_trainer(tmp_path, steps=100_000, seconds=0.3)
    assert 0 < trainer.run().step < 100_000
    assert "valid_loss" in listener.records[-1]
    assert kept


def test_best_and_last_are_both_kept(tmp_path: Path) -> None:
    weights = {}

    def evaluate(model):  # type: ignore[no-untyped-def]
        step = trainer.state.step
        weights[step] = copy_of(model)
        loss = abs(step - 8) + 1.0
        return {"valid_loss": loss, "wrong_source_loss": loss + 1}

    trainer, _, kept = small_trainer(tmp_path, evaluate, steps=14, average=1)
    trainer.run()
    assert_equal(kept[-1], weights[8])
    assert saved_steps(tmp_path) == [14, 10]
    newest = find_checkpoints(tmp_path)[0][0]
    tensors = read_tensors(newest).items()
    last = {name.removeprefix("model."): t for name, t in tensors if name.startswith("model.")}
    assert_equal(last, weights[14])
    assert read_state(newest).best_step == 8


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


@pytest.mark.parametrize(
    ("fault", "step", "what", "saved"),
    [
        ("loss", 13, "loss became nan", [10, 5]),
        ("gradient", 4, "weight became (nan|inf)", []),
        ("gradient", 5, "weight became (nan|inf)", [4]),
        ("gradient", 12, "weight became (nan|inf)", [10, 5]),  # the loss before it is fine
        ("validation", 4, "validation loss became nan", []),
    ],
)
def test_what_is_no_number_stops_the_run_and_is_neither_kept_nor_saved(
    tmp_path: Path, fault: str, step: int, what: str, saved: list[int]
) -> None:
    evaluate = listed([math.nan]) if fault == "validation" else None
    trainer, listener, kept = small_trainer(tmp_path, evaluate, steps=40, average=1, patience=0)
    plain = trainer.layout.loss_sum

    def planted(batch, smoothing):  # type: ignore[no-untyped-def]
        loss = plain(batch, smoothing)
        if trainer.state.step == step and fault == "gradient":
            loss.register_hook(lambda gradient: gradient * math.inf)
        return loss * math.nan if trainer.state.step == step and fault == "loss" else loss

    trainer.layout.loss_sum = planted
    with pytest.raises(UserError, match=rf"{what} at step {step} \(learning rate") as caught:
        trainer.run()
    assert str(tmp_path) in str(caught.value)
    assert all(math.isfinite(record["loss"]) for record in listener.records)
    assert saved_steps(tmp_path) == saved
    for tensors in [*kept, *map(read_tensors, find_checkpoints(tmp_path)[0])]:
        assert all(tensor.isfinite().all() for tensor in tensors.values())


@pytest.mark.parametrize(("metric", "n_warnings"), [("loss", 3), ("accuracy", 0)])
def test_a_run_that_does_not_learn_is_warned_of_after_its_warm_up(
    tmp_path: Path, metric: str, n_warnings: int
) -> None:
    """At steps 8, 12 and 16, but never where labels are scored."""
    trainer, listener, _ = small_trainer(
        tmp_path,
        lambda _: {"valid_loss": 7.0, "accuracy": 90.0},
        steps=16,
        patience=0,
        average=1,
        metric=metric,
    )
    trainer.baseline = 6.5
    trainer.run()
    warnings = [sentence for sentence in listener.said if sentence.startswith("warning: ")]
    assert len(warnings) == n_warnings
    assert all("does not learn" in warning for warning in warnings)
    assert listener.said_after[:n_warnings] == [8, 12, 16][:n_warnings]


def after_step(trainer: loop.Trainer, step: int, act: Any) -> None:
    """Do something when a step is taken and nothing else is done yet."""
    plain = trainer.take_step

    def acting(batches: Any) -> None:
        plain(batches)
        if trainer.state.step == step:
            act()

    trainer.take_step = acting  # type: ignore[method-assign]


@pytest.mark.parametrize("step", [3, 8, 12])  # between validations, at one, at the end
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_writes_a_checkpoint_and_stops(
    tmp_path: Path, number: signal.Signals, step: int
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    trainer, listener, _ = small_trainer(tmp_path)
    after_step(trainer, step, lambda: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.run()
    assert isinstance(caught.value, TrainingInterrupt)
    assert (caught.value.signal_number, caught.value.step) == (number, step)
    assert saved_steps(tmp_path)[0] == step
    assert read_state(find_checkpoints(tmp_path)[0][0]).validated == step - step % 4
    assert [record["step"] for record in listener.records] == list(range(1, step + 1))
    assert "stopping after this step" in listener.said[0]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    trainer, _, _ = small_trainer(tmp_path)
    evaluated = []

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    trainer.evaluate = lambda: evaluated.append(1) or {}  # type: ignore[func-returns-value]
    after_step(trainer, 4, twice)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.run()
    assert not isinstance(caught.value, TrainingInterrupt)
    assert not evaluated and not saved_steps(tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_training_leaves_signals_alone(tmp_path: Path) -> None:
    trainer, _, _ = small_trainer(tmp_path)
    before, seen = signal.getsignal(signal.SIGINT), []
    after_step(trainer, 3, lambda: seen.append(signal.getsignal(signal.SIGINT)))
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert trainer.state.step == 12 and seen == [before]


@pytest.mark.parametrize("where", ["step", "validation", "batches"])
@pytest.mark.parametrize(
    ("error", "place"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), "The GPU (cpu)"),
        (RuntimeError("CUDA error: out of memory"), "The GPU (cpu)"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8"), "The ma"),
        (MemoryError(), "The machine"),
    ],
    ids=str,
)
def test_out_of_memory_is_a_sentence_that_says_what_to_lower(
    tmp_path: Path, error: Exception, place: str, where: str
) -> None:
    trainer, _, _ = small_trainer(tmp_path, batch_tokens=300)

    def fail(*arguments: Any) -> Any:
        raise error

    if where == "step":
        trainer.layout.loss_sum = fail
    elif where == "validation":
        trainer.evaluate = fail
    else:
        trainer.stream.steps_from = fail  # type: ignore[method-assign]
    with pytest.raises(UserError) as caught:
        trainer.run()
    message = str(caught.value)
    assert message.startswith(place) and " ran out of memory; lower " in message
    for setting in ("train.batch_tokens (300)", "train.accumulate", "data.max_length", "sizes"):
        assert setting in message


def test_a_real_allocation_that_is_too_large_is_such_a_sentence(tmp_path: Path) -> None:
    trainer, _, _ = small_trainer(tmp_path)
    trainer.layout.loss_sum = lambda batch, smoothing: torch.empty(10**15).sum()
    with pytest.raises(
        UserError, match=r"The machine ran out of memory; lower train\.batch_tokens"
    ):
        trainer.run()


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    trainer, _, _ = small_trainer(tmp_path)
    trainer.layout.loss_sum = lambda batch, smoothing: torch.zeros(3) @ torch.zeros(4)
    with pytest.raises(RuntimeError, match=r"inconsistent tensor size|mismatch"):
        trainer.run()
