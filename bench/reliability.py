"""Kill, damage and soak training runs: `python -m bench.reliability --only kills --kills 200`.

kills    SIGKILL at random moments, many of them while a checkpoint is written: of a run alone, of
         one of two workers, of both; resumed until done, the final weights must have the bits of a
         run that was never killed
flips    one random bit of a checkpoint, a model or encoded data; it must be found or do no harm
faults   full disk, disk that can only be read, vanished data, gradients that are not numbers
soak     20,000 steps; memory, handles and threads must stay, the log must tell the truth

Writes what it finds to docs/reliability.json; exits with 1 where a trial fails. Linux only.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import outcomes
from bench.faults import FAULTS
from bench.flips import FLIPS
from bench.kills import kills
from bench.soak import soak
from bench.tiny_run import exit_code, said_in, tiny_recipe, train_in_child, write_pairs

TRIALS = ("kills", "flips", "faults", "soak")


def flips(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Flip `times` single bits of each kind of file."""
    recipe = tiny_recipe(write_pairs(scratch / "digits.tsv"))
    folder = scratch / "run"
    assert exit_code(train_in_child(recipe, folder, False)) == 0, said_in(folder)
    counts = {
        kind: flip(folder, scratch, random.Random(options.seed), options.times)
        for kind, flip in FLIPS.items()
    }
    return {**counts, "passed": not any(count["unnoticed"] for count in counts.values())}


def faults(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Bring on each fault once; record the sentence that it ends with, or what it recovers to."""
    known = outcomes.load().get("faults", {}) if options.fault else {}
    found = {name: record for name, record in known.items() if name in FAULTS}
    for name in options.fault or FAULTS:
        found[name] = {**FAULTS[name](scratch / name.replace(" ", "-")), "tried": 1}
    return {**found, "passed": all(record["passed"] for record in found.values())}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("bench.reliability", description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=TRIALS, nargs="*", default=TRIALS)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--times", type=int, default=200, help="flips of each kind")
    parser.add_argument("--processes", type=int, default=1, help="runs to kill beside each other")
    parser.add_argument("--steps", type=int, default=20_000, help="steps of the soak")
    parser.add_argument("--fault", choices=FAULTS, nargs="*", help="these alone; others are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-save", action="store_true", help="leave docs/reliability.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    trials: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]]
    trials = {"kills": kills, "flips": flips, "faults": faults, "soak": soak}
    failed = False
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="qkv-reliability-") as scratch:
            os.environ["QKV_HOME"] = f"{scratch}/home"
            start = time.perf_counter()
            outcome = trials[name](Path(scratch), options)
        outcome["seconds"] = round(time.perf_counter() - start)
        print(name, outcome)
        failed = failed or not outcome["passed"]
        if not options.no_save:
            outcomes.save(name, outcome, "bench.reliability")
    sys.exit(failed)


if __name__ == "__main__":
    main()
