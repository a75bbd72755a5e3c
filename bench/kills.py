"""Training runs that are killed (SIGKILL) again and again, alone or with several workers."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.tiny_run import (
    REFUSED,
    all_bits,
    exit_code,
    said_in,
    start_workers,
    tiny_recipe,
    write_pairs,
)

SHARE = 0.2  # of an undisturbed run's time, within which a run is killed
STEPS = 60  # with a checkpoint every ten
A_RUN = 5  # kills of one run, before it may end
PATIENCE = 60.0  # seconds in which a worker that lost another one must end
ALONE = 10.0  # of which it has these by itself; then it gets SIGTERM, as a launcher sends it


@dataclass(frozen=True)
class Setup:
    """How a run is started, and which of its processes are killed."""

    n_workers: int = 1
    one: bool = False  # one worker, drawn at random; else all at once
    train: dict[str, Any] = field(default_factory=dict)


SHARDED = {"shard": "full"}
SETUPS = {
    "a process alone": Setup(),
    "one of two workers": Setup(2, True),
    "both of two workers": Setup(2),
    "one of two workers, sharded": Setup(2, True, SHARDED),
    "both of two workers, sharded": Setup(2, False, SHARDED),
}


@dataclass(frozen=True)
class Trial:
    """A run to kill some times, and the bits that it must end with."""

    name: str
    folder: Path
    recipe: Any
    kills: int
    seed: int
    seconds: float
    """Of the run that was never killed."""
    expected: dict[str, Any]


class Killer:
    """Starts a run again and again and kills it, now after some time, now in a write."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.setup = trial, SETUPS[trial.name]
        self.draw = random.Random(trial.seed)
        self.counts: Counter[str] = Counter()

    def finish(self) -> Counter[str]:
        """Kill a run as often as asked for, or until it ends; compare its bits."""
        trial, folder = self.trial, self.trial.folder
        while True:
            resume = (folder / "recipe.toml").exists()
            children = start_workers(trial.recipe, folder, resume, self.setup.n_workers)
            if self.counts["kills"] < trial.kills and self._kill(children):
                continue
            if self.counts["kills"] == trial.kills:
                _check([exit_code(child) for child in children], folder)
            break
        self.counts["runs"] += 1
        self.counts["runs with other bits"] += all_bits(folder) != trial.expected
        self.counts["unfinished files left"] += len(written(folder))
        shutil.rmtree(folder)
        return self.counts

    def _kill(self, children: Sequence[int]) -> bool:
        """Kill workers at a random moment; False where the run had ended by itself."""
        folder, in_write = self.trial.folder, self.draw.random() < 0.6
        moment = time.monotonic() + self.draw.uniform(0, SHARE * self.trial.seconds)
        while time.monotonic() < moment or (in_write and not checkpoints_written(folder)):
            if all(_has_ended(child) for child in children):
                _check([exit_code(child) for child in children], folder)
                return False
            time.sleep(0.0002)
        victims = [self.draw.choice(children)] if self.setup.one else children
        for child in victims:
            os.kill(child, signal.SIGKILL)
        self.counts["kills"] += 1
        self.counts["while a checkpoint was written"] += bool(checkpoints_written(folder))
        self.counts["while any file was written"] += bool(written(folder))
        self._wait_for(children)
        return True

    def _wait_for(self, children: Sequence[int]) -> None:
        """Wait for all workers; one that does not end is counted, and killed.

        Where the lost one had not come to the meeting point yet, only a launcher knows.
        """
        start = time.monotonic()
        for child in children:
            if not _ends_by(child, start + ALONE):
                self.counts["workers that a launcher ends"] += 1
                os.kill(child, signal.SIGTERM)
            if not _ends_by(child, start + PATIENCE):
                self.counts["workers that did not end"] += 1
                os.kill(child, signal.SIGKILL)
            killed = (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
            if (code := exit_code(child)) not in (0, 1, REFUSED, *killed):
                raise SystemExit(f"A worker crashed ({code}): {said_in(self.trial.folder)}")


def _ends_by(child: int, deadline: float) -> bool:
    while not (ended := _has_ended(child)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return ended


def _has_ended(child: int) -> bool:
    """Whether a process has ended; it can still be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _check(codes: Sequence[int], folder: Path) -> None:
    if any(codes):
        raise SystemExit(f"A resumed run failed ({codes}): {said_in(folder)}")


def written(folder: Path) -> list[Path]:
    """Return the files and folders that are being written now."""
    return [*folder.glob(".*.writing"), *folder.glob("*/.*.writing")]


def checkpoints_written(folder: Path) -> list[Path]:
    """Return the checkpoints that are being written now, which a thread of the run does."""
    return list(folder.glob("checkpoints/.step-*.writing"))


def _undisturbed(scratch: Path, name: str) -> tuple[Any, float, dict[str, Any]]:
    """Run a setup to its end; return its recipe, the seconds and the bits."""
    setup, folder = SETUPS[name], scratch / name.replace(" ", "-")
    recipe = tiny_recipe(scratch / "digits.tsv", steps=STEPS, **setup.train)
    start = time.monotonic()
    children = start_workers(recipe, folder, False, setup.n_workers)
    _check([exit_code(child) for child in children], folder)
    return recipe, time.monotonic() - start, all_bits(folder)


def _run(trial: Trial) -> Counter[str]:
    torch.set_num_threads(1)
    return Killer(trial).finish()


def kills(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Kill runs of every setup, so many times in all; compare each with one never killed."""
    write_pairs(scratch / "digits.tsv")
    whole = {name: _undisturbed(scratch, name) for name in SETUPS}
    names = list(SETUPS)
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    context = multiprocessing.get_context("fork")
    number = 0
    with ProcessPoolExecutor(options.processes, context) as pool:
        while (done := sum(count["kills"] for count in counts.values())) < options.kills:
            left = options.kills - done
            trials = []
            for start in range(0, left, A_RUN):
                name, number = names[number % len(names)], number + 1
                recipe, seconds, expected = whole[name]
                folder, times = scratch / f"cut-{number}", min(A_RUN, left - start)
                seed = options.seed * 10_000 + number
                trials.append(Trial(name, folder, recipe, times, seed, seconds, expected))
            for trial, found in zip(trials, pool.map(_run, trials), strict=True):
                counts[trial.name].update(found)
    total: Counter[str] = sum(counts.values(), Counter())
    bad = ("runs with other bits", "unfinished files left", "workers that did not end")
    told = ("kills", "while a checkpoint was written", "runs", "workers that a launcher ends", *bad)
    summed = {key: total[key] for key in told}
    apart = {name: {key: count[key] for key in ("kills", "runs")} for name, count in counts.items()}
    return {**summed, **apart, "passed": not any(total[key] for key in bad)}
