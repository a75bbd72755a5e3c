"""Exact resume: stopped anywhere and gone on, a run ends bit for bit as if never stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.training import loop
from qkv.training.checkpoint import newest_checkpoints
from qkv.training.log import JsonLog
from qkv.weights import read_tensors, write_tensors
from tests.run.common import read_log
from tests.training.helpers import assert_equal, copy_of, small_trainer

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 3},
    "packed": {"mode": "packed"},
    "half precision": {"precision": "bfloat16"},
    "averaged often": {"average": 4, "patience": 0, "valid_every": 1, "checkpoint_every": 6},
    "rarely saved": {"checkpoint_every": 100, "valid_every": 3},
    "odd end": {"steps": 13, "average": 2},
    "bleu": {"metric": "bleu", "schedule": "cosine", "optimizer": "adam"},
}


class Killed(BaseException):
    """As sudden as a signal: nobody catches it."""


def go(folder: Path, resume: bool = False, kill: Any = None, **settings: Any) -> dict[str, Any]:
    """Run, or go on with, the run in `folder`; hand back the weights that it keeps in the end."""
    trainer, _, _ = small_trainer(folder / "checkpoints", **settings)
    best = folder / "model.safetensors"
    trainer.keep = lambda: write_tensors(best, copy_of(trainer.model), {})
    if resume:
        trainer.resume()
    trainer.reporters = [JsonLog(folder / "log.jsonl", trainer.progress.step)]
    if kill:
        kill(trainer)
    try:
        trainer.run()
    finally:
        trainer.reporters[0].close()
    return read_tensors(best)


def at_step(step: int, after: str = "accumulate") -> Any:
    """Die in a step: before its update, or after it and before anybody is told."""

    def plant(trainer: loop.Trainer) -> None:
        plain = trainer.take_step

        def dying(batches: Any) -> None:
            if trainer.progress.step + 1 == step and after == "accumulate":
                trainer.loss_sum(batches[0], 0.0).backward()
                raise Killed
            plain(batches)
            if trainer.progress.step == step:
                raise Killed

        trainer.take_step = dying  # type: ignore[method-assign]

    return plant


def in_method(name: str, step: int, when: str) -> Any:
    """Die before or after the run validates, saves, keeps or snapshots at a step."""

    def plant(trainer: loop.Trainer) -> None:
        plain = getattr(trainer, name)

        def dying(*arguments: Any) -> Any:
            if trainer.progress.step == step and when == "before":
                raise Killed
            result = plain(*arguments)
            if trainer.progress.step == step:
                raise Killed
            return result

        setattr(trainer, name, dying)

    return plant


def comparable(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if key != "tokens_per_second"}
        for record in read_log(folder)
    ]


def assert_same_end(one: Path, other: Path) -> None:
    assert comparable(one) == comparable(other)
    newest, expected = (newest_checkpoints(path / "checkpoints", 1)[0] for path in (one, other))
    assert newest.name == expected.name
    assert_equal(read_tensors(newest), read_tensors(expected))


def check(tmp_path: Path, kill: Any, **settings: Any) -> None:
    whole = go(tmp_path / "whole", **settings)
    with pytest.raises(Killed):
        go(tmp_path / "cut", kill=kill, **settings)
    torch.manual_seed(99)  # nothing may hang on where the random numbers stand
    resumed = go(tmp_path / "cut", resume=True, **settings)
    assert_same_end(tmp_path / "cut", tmp_path / "whole")
    assert_equal(resumed, whole)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("step", [1, 7, 11])
def test_killed_in_a_step(tmp_path: Path, variant: dict[str, Any], step: int) -> None:
    check(tmp_path, at_step(step), **variant)


@pytest.mark.parametrize("step", range(1, 13))
def test_killed_after_any_step(tmp_path: Path, step: int) -> None:
    check(tmp_path, at_step(step, after="update"))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("evaluate", 8),
        ("keep", 4),
        ("_snapshot", 8),
        ("flush", 10),
        ("save", 5),
        ("save", 10),
        ("validate", 12),
        ("save", 12),
        ("keep_average", 12),
    ],
)
def test_killed_around_what_follows_a_step(tmp_path: Path, name: str, step: int, when: str) -> None:
    check(tmp_path, in_method(name, step, when))


@pytest.mark.parametrize("steps", [12, 13, 14])
def test_a_finished_run_that_is_gone_on_with_ends_the_same(tmp_path: Path, steps: int) -> None:
    settings = {"steps": steps, "average": 3}
    whole = go(tmp_path, **settings)
    log, newest = comparable(tmp_path), newest_checkpoints(tmp_path / "checkpoints", 1)[0]
    state = read_tensors(newest)
    assert_equal(go(tmp_path, resume=True, **settings), whole)
    assert comparable(tmp_path) == log
    assert_equal(read_tensors(newest), state)


@pytest.mark.parametrize("size", [0, 64, 0.3, 0.9])
@pytest.mark.parametrize("average", [1, 4])
def test_a_truncated_newest_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, size: float, average: int
) -> None:
    settings = {"average": average, "valid_every": 2, "checkpoint_every": 5, "steps": 16}
    whole = go(tmp_path / "whole", **settings)
    with pytest.raises(Killed):
        go(tmp_path / "cut", kill=at_step(13), **settings)
    newest, before = newest_checkpoints(tmp_path / "cut" / "checkpoints", 2)
    assert (newest.name, before.name) == ("step-00000010.safetensors", "step-00000005.safetensors")
    content = newest.read_bytes()
    newest.write_bytes(content[: size if isinstance(size, int) else int(size * len(content))])
    resumed = go(tmp_path / "cut", resume=True, **settings)
    assert_same_end(tmp_path / "cut", tmp_path / "whole")
    assert_equal(resumed, whole)


def test_a_kill_in_the_middle_of_writing_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands on disk then: the old files, and a part of the new one beside them."""
    whole = go(tmp_path / "whole")

    def cut_short(tensors: Any, path: Path, metadata: Any) -> None:
        Path(path).write_bytes(b"\x00" * 100)
        shutil.copytree(tmp_path / "cut", tmp_path / "left")  # as it is in this moment
        raise Killed

    def plant(trainer: loop.Trainer) -> None:
        plain = trainer.save

        def save() -> None:
            if trainer.progress.step == 10:
                monkeypatch.setattr("qkv.weights.save_file", cut_short)
            plain()

        trainer.save = save  # type: ignore[method-assign]

    with pytest.raises(Killed):
        go(tmp_path / "cut", kill=plant)
    monkeypatch.undo()
    assert list((tmp_path / "left" / "checkpoints").glob(".step-00000010.*.writing"))
    assert_equal(go(tmp_path / "left", resume=True), whole)
    assert_same_end(tmp_path / "left", tmp_path / "whole")
    assert not list((tmp_path / "left" / "checkpoints").glob("*.writing"))


def test_killed_twice_and_saved_at_other_steps_the_second_time(tmp_path: Path) -> None:
    whole = go(tmp_path / "whole")
    with pytest.raises(Killed):
        go(tmp_path / "cut", kill=at_step(6))
    with pytest.raises(Killed):
        go(tmp_path / "cut", resume=True, kill=at_step(9), checkpoint_every=3)
    assert_equal(go(tmp_path / "cut", resume=True, checkpoint_every=100), whole)
    assert_same_end(tmp_path / "cut", tmp_path / "whole")


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    """Or the tests above would prove nothing."""
    go(tmp_path / "one")
    go(tmp_path / "other", seed=1)
    assert comparable(tmp_path / "one") != comparable(tmp_path / "other")
