"""A worker of the tests: trains several small runs in float64 and writes what became of them.

python -m tests.training.worker CASES.json FOLDER
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from qkv.config import recipe_from
from qkv.data.batch import Batch
from qkv.run.train import make_trainer, prepare
from qkv.training import Distribution, Trainer, joined
from qkv.weights import write_tensors

CPU = torch.device("cpu")
STEPS = 2
Case = Mapping[str, Any]  # name, task, recipe, scored; load and save: folders of checkpoints


def main() -> None:
    """Run all cases with the same processes, which take longer to start than to train."""
    torch.set_num_threads(1)
    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    with joined(CPU) as workers:
        for case in cases:
            size = case["recipe"]["train"].get("tensor_parallel", 1)
            trained(case, folder, dataclasses.replace(workers, tensor_size=size))


def trained(case: Case, folder: Path, workers: Distribution) -> Trainer:
    """Train a case for some steps; the main worker writes the weights, losses and batches."""
    recipe = recipe_from(case["recipe"])
    job = prepare(recipe, folder / "job", Console(quiet=True), workers=workers)
    job.model.double()
    trainer = make_trainer(job)
    if case.get("load"):
        trainer.folder = Path(case["load"])
        assert trainer.resume(lambda sentence: None)
    shares, losses = [], []
    for batches in islice(job.stream.steps_from(trainer.state.step), STEPS):
        exact = [_double(batch) for batch in batches]
        trainer.take_step(exact)
        losses.append(float(workers.reduce_shares(trainer.pending[-1]["loss"])))
        shares += [sum(batch.n_labels for batch in exact)]
    trainer.layout.collect()
    if case.get("save"):
        trainer.folder = Path(case["save"])
        trainer.save()
        trainer.writing.wait()
        workers.barrier()
    if case["task"] == "images":
        job.model.float()  # as the pixels that are validated with
    scores = job.evaluate() if case.get("scored") else {}
    all_shares = workers.gather(shares)
    if workers.is_main:
        weights = {name: p.detach() for name, p in job.model.named_parameters()}
        facts = {"losses": losses, "scores": scores, "shares": all_shares}
        path = folder / f"{case['name']}.safetensors"
        write_tensors(path, weights, {"facts": json.dumps(facts)})
    return trainer


def _double(batch: Batch) -> Batch:
    """Pixels as exact as the weights; tokens as they are."""
    side = batch.target
    if side.tokens.dtype != torch.float32:
        return batch
    return dataclasses.replace(batch, target=dataclasses.replace(side, tokens=side.tokens.double()))


if __name__ == "__main__":
    main()
