"""A long run whose memory, handles and threads are watched from outside."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.tiny_run import tiny_recipe, train_in_child, write_pairs
from qkv.run.train import prepare
from qkv.weights import load_weights, read_tensors

EVERY = 0.5  # seconds between two looks
MOST_GROWTH = 8.0  # MiB between the second quarter of a run and its last


def soak(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train for `steps` steps; compare the run's second quarter with its last."""
    pairs = write_pairs(scratch / "digits.tsv", 1000)
    recipe = tiny_recipe(
        pairs, steps=options.steps, average=1, valid_every=500, checkpoint_every=200, accumulate=1
    )
    folder = scratch / "run"
    looks = _watch(train_in_child(recipe, folder, False), folder)
    second, last = looks[len(looks) // 4 : len(looks) // 2], looks[3 * len(looks) // 4 :]
    found = {"steps": options.steps, "looks": len(looks)}
    # What is usual: a checkpoint that is just being written has a handle and a thread of its own.
    for number, name in enumerate(("MiB", "handles", "threads")):
        found[name] = [median(look[number] for look in quarter) for quarter in (second, last)]
    logged, fresh = _best_logged(folder), _fresh_scores(recipe, folder, scratch)
    found |= {"logged": logged, "evaluated again": fresh}
    flat = found["MiB"][1] - found["MiB"][0] <= MOST_GROWTH
    kept = all(found[name][1] <= found[name][0] for name in ("handles", "threads"))
    return {**found, "passed": flat and kept and logged == fresh}


def _watch(child: int, folder: Path) -> list[tuple[float, int, int]]:
    """Look at a process until it ends."""
    looks = []
    while not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(EVERY)
        try:
            status = Path(f"/proc/{child}/status").read_text()
            handles = len(os.listdir(f"/proc/{child}/fd"))  # noqa: PTH208
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines())
        if "VmRSS" in fields and (folder / "log.jsonl").exists():
            kib = int(fields["VmRSS"].split()[0])
            looks.append((round(kib / 1024, 1), handles, int(fields["Threads"])))
    return looks


def _best_logged(folder: Path) -> dict[str, float]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if "valid_loss" in record]
    best = min(records, key=lambda record: record["valid_loss"])
    return {name: best[name] for name in ("valid_loss", "bleu", "exact") if name in best}


def _fresh_scores(recipe: Any, folder: Path, scratch: Path) -> dict[str, float]:
    """Evaluate the saved weights in a model and on data that are read anew."""
    job = prepare(recipe, scratch / "fresh", Console(quiet=True))
    weights = folder / "model.safetensors"
    load_weights(job.model, read_tensors(weights), weights)
    scores = job.evaluate()
    return {name: scores[name] for name in ("valid_loss", "bleu", "exact") if name in scores}
