"""Exact resume: stopped anywhere and resumed, a run ends bit for bit as if never stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import UserError
from qkv.training import JsonLog, Trainer
from qkv.training.checkpoint import find_checkpoints
from qkv.weights import read_tensors, write_tensors
from tests.run.common import read_log
from tests.training.helpers import assert_equal, copy_of, packed, small_trainer

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 3},
    "packed": {"lay": packed},
    "half precision": {"precision": "bfloat16"},
    "averaged often": {"average": 4, "patience": 0, "valid_every": 1, "checkpoint_every": 6},
    "rarely saved": {"checkpoint_every": 100, "valid_every": 3},
    "odd end": {"steps": 13, "average": 2},
    "bleu": {"metric": "bleu", "schedule": "cosine"},
    "muon": {"optimizer": "muon"},
    "8-bit state": {"optimizer_state": "int8"},
    "muon, half precision": {"optimizer": "muon", "precision": "bfloat16"},
}
Plant = Callable[[Trainer], None]
Run = Callable[..., tuple[Path, dict[str, Any]]]


class Killed(BaseException):
    """As sudden as a signal: nobody catches it."""


def go(
    folder: Path, resume: bool = False, kill: Plant | None = None, **settings: Any
) -> dict[str, Any]:
    """Run or resume in `folder`; return the weights that it keeps in the end."""
    trainer, _, _ = small_trainer(folder / "checkpoints", **settings)
    best = folder / "model.safetensors"
    trainer.keep = lambda: write_tensors(best, copy_of(trainer.model), {})
    if kill:
        kill(trainer)
    if resume:
        trainer.resume()
    trainer.reporters = [JsonLog(folder / "log.jsonl", trainer.state.step)]
    try:
        trainer.run()
    finally:
        trainer.reporters[0].close()
    return read_tensors(best)


def kill(name: str, step: int, when: str) -> Plant:
    """Die before or after what is done at a step, or in a step, when its gradient is there."""

    def plant(trainer: Trainer) -> None:
        plain = getattr(trainer, name)

        def dying(*arguments: Any) -> Any:
            now = trainer.state.step
            if when == "before" and now == step:
                raise Killed
            if when == "in" and now + 1 == step:
                trainer.layout.loss_sum(arguments[0][0], 0.0).backward()
                raise Killed
            result = plain(*arguments)
            if trainer.state.step == step:
                raise Killed
            return result

        setattr(trainer, name, dying)

    return plant


def comparable(folder: Path) -> list[dict[str, Any]]:
    return [{**record, "tokens_per_second": None} for record in read_log(folder)]


def newest(folder: Path) -> Path:
    return find_checkpoints(folder / "checkpoints")[0][0]


def assert_same_end(found: Path, expected: Path) -> None:
    assert comparable(found) == comparable(expected)
    assert newest(found).name == newest(expected).name
    assert_equal(read_tensors(newest(found)), read_tensors(newest(expected)))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nobody stopped: its folder and the weights that it keeps, made once."""
    made: dict[str, tuple[Path, dict[str, Any]]] = {}

    def run(**settings: Any) -> tuple[Path, dict[str, Any]]:
        if str(settings) not in made:
            folder = tmp_path_factory.mktemp("whole")
            made[str(settings)] = folder, go(folder, **settings)
        return made[str(settings)]

    return run


def check(tmp_path: Path, undisturbed: Run, death: Plant, **settings: Any) -> None:
    folder, whole = undisturbed(**settings)
    with pytest.raises(Killed):
        go(tmp_path, kill=death, **settings)
    torch.manual_seed(99)  # nothing may hang on where the random numbers stand
    resumed = go(tmp_path, resume=True, **settings)
    assert_same_end(tmp_path, folder)
    assert_equal(resumed, whole)


@pytest.mark.parametrize(
    ("variant", "step"),
    [*((variant, 7) for variant in VARIANTS), ("averaged often", 11)],
)
def test_killed_in_a_step(tmp_path: Path, undisturbed: Run, variant: str, step: int) -> None:
    check(tmp_path, undisturbed, kill("take_step", step, "in"), **VARIANTS[variant])


AROUND = [
    ("evaluate", 8),
    ("save", 4),  # before the first model
    ("keep", 4),
    ("_snapshot", 8),
    ("flush", 10),
    ("save", 5),
    ("save", 10),
    ("validate", 12),
    ("save", 12),
    ("keep_average", 12),
]


@pytest.mark.parametrize(
    ("name", "step", "when"),
    [
        *(("take_step", step, "after") for step in (1, 5, 11)),
        *((*where, when) for where in AROUND for when in ("before", "after")),
    ],
)
def test_killed_before_or_after_anything(
    tmp_path: Path, undisturbed: Run, name: str, step: int, when: str
) -> None:
    check(tmp_path, undisturbed, kill(name, step, when))


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_the_only_validation(tmp_path: Path, undisturbed: Run, when: str) -> None:
    death = kill("keep", 12, when)
    check(tmp_path, undisturbed, death, valid_every=100, checkpoint_every=100)


@pytest.mark.parametrize("steps", [12, 13, 14])
def test_a_finished_run_that_is_resumed_ends_the_same(tmp_path: Path, steps: int) -> None:
    settings = {"steps": steps, "average": 3}
    whole = go(tmp_path, **settings)
    log, state = comparable(tmp_path), read_tensors(newest(tmp_path))
    assert_equal(go(tmp_path, resume=True, **settings), whole)
    assert comparable(tmp_path) == log
    assert_equal(read_tensors(newest(tmp_path)), state)


@pytest.mark.parametrize(("size", "average"), [(0, 1), (64, 4), (0.3, 1), (0.9, 4)])
def test_a_damaged_newest_checkpoint_is_named_and_gives_way_to_the_one_before(
    tmp_path: Path, undisturbed: Run, size: float, average: int
) -> None:
    settings = {"average": average, "valid_every": 2, "checkpoint_every": 5, "steps": 16}
    (folder, whole), cut = undisturbed(**settings), tmp_path / "cut"
    with pytest.raises(Killed):
        go(cut, kill=kill("take_step", 13, "in"), **settings)
    damaged = newest(cut)
    content = damaged.read_bytes()
    damaged.write_bytes(content[: size if isinstance(size, int) else int(size * len(content))])
    said: list[str] = []
    assert small_trainer(cut / "checkpoints", **settings)[0].resume(said.append)
    warning, resuming = said
    assert warning.startswith(f"warning: passed over {damaged.name}: ")
    assert "truncated or damaged" in warning
    assert (damaged.name, resuming) == ("step-00000010.safetensors", "resuming from step 5")
    assert_equal(go(cut, resume=True, **settings), whole)
    assert_same_end(cut, folder)


def test_where_no_checkpoint_can_be_read_resuming_is_refused(tmp_path: Path) -> None:
    go(tmp_path)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        path.write_bytes(path.read_bytes()[:-1])
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"No checkpoint in .* can be read, step-00000012") as error:
        go(tmp_path, resume=True)
    assert "train again in another folder" in str(error.value)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        path.unlink()
    with pytest.raises(UserError, match="has a trained model but no checkpoint in checkpoints/"):
        go(tmp_path, resume=True)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_resuming_where_nothing_is_starts(tmp_path: Path) -> None:
    trainer, listener, _ = small_trainer(tmp_path / "none" / "checkpoints")
    assert not trainer.resume()
    assert not listener.said and trainer.state.step == 0


def test_a_kill_in_the_middle_of_writing_leaves_the_checkpoint_before(
    tmp_path: Path, undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands on disk then: the old files, and a part of the new one beside them."""
    folder, whole = undisturbed()

    def cut_short(tensors: Any, path: Path, metadata: Any) -> None:
        Path(path).write_bytes(b"\x00" * 100)
        shutil.copytree(tmp_path / "cut", tmp_path / "left")  # as it is in this moment
        raise Killed

    def plant(trainer: Trainer) -> None:
        plain = trainer.save

        def save() -> None:
            if trainer.state.step == 10:
                monkeypatch.setattr("qkv.weights.save_file", cut_short)
            plain()

        trainer.save = save  # type: ignore[method-assign]

    with pytest.raises(Killed):
        go(tmp_path / "cut", kill=plant)
    monkeypatch.undo()
    assert list((tmp_path / "left" / "checkpoints").glob(".step-00000010.*.writing"))
    assert_equal(go(tmp_path / "left", resume=True), whole)
    assert_same_end(tmp_path / "left", folder)
    assert not list((tmp_path / "left" / "checkpoints").glob("*.writing"))


def test_killed_twice_and_saved_at_other_steps_the_second_time(
    tmp_path: Path, undisturbed: Run
) -> None:
    folder, whole = undisturbed()
    with pytest.raises(Killed):
        go(tmp_path / "cut", kill=kill("take_step", 6, "in"))
    with pytest.raises(Killed):
        go(tmp_path / "cut", resume=True, kill=kill("take_step", 9, "in"), checkpoint_every=3)
    assert_equal(go(tmp_path / "cut", resume=True, checkpoint_every=100), whole)
    assert_same_end(tmp_path / "cut", folder)


def test_another_seed_is_another_run(undisturbed: Run) -> None:
    """Or the tests above would prove nothing."""
    assert comparable(undisturbed()[0]) != comparable(undisturbed(seed=1)[0])
