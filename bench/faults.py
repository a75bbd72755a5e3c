"""Faults of the machine during a run: each ends in one sentence or is recovered from."""

from __future__ import annotations

import math
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.flips import flipped
from bench.tiny_run import (
    REFUSED,
    all_bits,
    exit_code,
    said_in,
    tiny_recipe,
    train_in_child,
    write_pairs,
)
from qkv.training import Trainer
from qkv.training import loop as training_loop

Record = dict[str, Any]


class Trial:
    """A run in a folder of its own, beside one that nothing happens to."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True)
        self.pairs = write_pairs(scratch / "digits.tsv")
        self.recipe, self.folder = tiny_recipe(self.pairs, steps=60), scratch / "run"
        whole = scratch.parent / "whole"
        if not whole.exists():  # the same for all
            assert exit_code(train_in_child(self.recipe, whole, False)) == 0, said_in(whole)
        self.expected = all_bits(whole)

    def run(self, before: Callable[[], object] = lambda: None, resume: bool = False) -> int:
        """Train to the end, or to the fault that `before` brings on in the child."""
        return exit_code(train_in_child(self.recipe, self.folder, resume, before))

    def said(self) -> str:
        """Return the error that the run ended with, or its first warning."""
        lines = said_in(self.folder).splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        warnings = [line for line in lines if line.startswith("· warning: ")]
        text = next(iter([*errors, *warnings]), "").partition(": ")[2]
        return text.replace(str(self.folder.parent), "…")

    def outcome(self, code: int, words: str, recovers: bool = True) -> Record:
        """Compare the end with the wanted sentence and, resumed, with the undisturbed run."""
        said = self.said()
        passed = code == REFUSED and words in said
        if recovers:
            passed = (
                passed and self.run(resume=True) == 0 and all_bits(self.folder) == self.expected
            )
        return {"said": said, "resumed to the same bits": recovers, "passed": passed}


@contextmanager
def _mounted(path: Path, size: str) -> Iterator[Callable[[str], None]]:
    """Mount a small disk in memory; yields a function that changes its options."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "qkv", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        raise PermissionError("a disk in memory may not be mounted here; run this as root")

    def change(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)

    try:
        yield change
    finally:
        subprocess.run(["umount", str(path)], check=True)


def full_disk(scratch: Path) -> Record:
    """Train on a disk with room for a checkpoint and a half."""
    trial = Trial(scratch)
    with _mounted(scratch / "disk", "128k") as change:
        trial.folder = scratch / "disk" / "run"
        code = trial.run()
        kept = [*trial.folder.rglob("*.writing")]
        change("size=16m")
        found = trial.outcome(code, "The disk is full")
        return {**found, "passed": found["passed"] and not kept}


def file_size_limit(scratch: Path) -> Record:
    """Train where no file may become larger than 64 KiB."""
    trial = Trial(scratch)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    return trial.outcome(trial.run(limit), "larger than this system allows")


def disk_to_read_only(scratch: Path) -> Record:
    """Resume a run whose disk can only be read by now."""
    trial = Trial(scratch)
    with _mounted(scratch / "disk", "16m") as change:
        trial.folder = scratch / "disk" / "run"
        trial.run(_stop_at(trial, 50))
        change("ro")
        code = exit_code(train_in_child(trial.recipe, trial.folder, True))
        change("rw")
        return trial.outcome(code, "can only be read")


def folder_without_permission(scratch: Path) -> Record:
    """Resume a run as a user who may not write to its folder."""
    trial = Trial(scratch)
    trial.run(_stop_at(trial, 50))
    for path in (*scratch.parents[:-2], scratch, trial.folder):
        path.chmod(0o755)

    def as_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)

    child = train_in_child(trial.recipe, trial.folder, True, as_nobody)
    code = exit_code(child)
    return trial.outcome(code, "Permission is denied")


def _stop_at(trial: Trial, step: int) -> Callable[[], None]:
    """Let the run end in an error in a step, as if it had been stopped there."""

    def plant() -> None:
        plain = Trainer.take_step

        def take_step(self: Trainer, batches: Any) -> None:
            if self.state.step == step:
                raise OSError(5, "stopped")
            plain(self, batches)

        Trainer.take_step = take_step  # type: ignore[method-assign]

    return plant


def vanished_data(scratch: Path) -> Record:
    """Delete the data in step 50: the run goes on; a new one says what is missing."""
    trial = Trial(scratch)
    content = trial.pairs.read_bytes()

    def plant() -> None:
        plain = Trainer.take_step

        def take_step(self: Trainer, batches: Any) -> None:
            if self.state.step == 50:
                trial.pairs.unlink()
            plain(self, batches)

        Trainer.take_step = take_step  # type: ignore[method-assign]

    went_on = trial.run(plant) == 0 and all_bits(trial.folder) == trial.expected
    code = trial.run(resume=True)
    said = trial.said()
    trial.pairs.write_bytes(content)
    passed = went_on and code == REFUSED and "There is no file" in said
    return {"said": said, "the run itself ended well": went_on, "passed": passed}


def not_a_number(what: str) -> Callable[[Path], Record]:
    """Return a fault: the loss or the gradient of step 55 is not a number."""

    def fault(scratch: Path) -> Record:
        trial = Trial(scratch)

        def plant() -> None:
            plain = training_loop.accumulate

            def accumulate(loss_sum: Any, batches: Any, smoothing: float) -> Any:
                def wrong(batch: Any, smoothing: float) -> Any:
                    loss = loss_sum(batch, smoothing)
                    if what == "gradient":
                        loss.register_hook(lambda gradient: gradient * math.nan)
                    return loss * math.nan if what == "loss" else loss

                steps[0] += 1
                return plain(wrong if steps[0] == 55 else loss_sum, batches, smoothing)

            steps = [0]
            training_loop.accumulate = accumulate

        return trial.outcome(trial.run(plant), "became nan")

    return fault


def damaged_checkpoint(scratch: Path) -> Record:
    """Flip a bit of the newest checkpoint, and resume: the one before it is taken."""
    trial = Trial(scratch)
    trial.run(_stop_at(trial, 57))
    path = max((trial.folder / "checkpoints").glob("step-*.safetensors"))
    path.write_bytes(flipped(path.read_bytes(), 4 * path.stat().st_size))
    code = trial.run(resume=True)
    said = trial.said()
    passed = code == 0 and "differs from its checksum" in said
    same = all_bits(trial.folder) == trial.expected
    return {"said": said, "resumed to the same bits": same, "passed": passed and same}


FAULTS: dict[str, Callable[[Path], Record]] = {
    "full disk": full_disk,
    "limit on file sizes": file_size_limit,
    "disk that can only be read": disk_to_read_only,
    "folder without permission": folder_without_permission,
    "vanished data file": vanished_data,
    "loss that is not a number": not_a_number("loss"),
    "gradient that is not a number": not_a_number("gradient"),
    "flipped bit in a checkpoint": damaged_checkpoint,
}
