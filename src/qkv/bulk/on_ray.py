"""Bulk jobs on Ray: a model on each worker, the machines of a cluster or processes of this one.

The folder of the output, the input and the model must be on a disk that all machines share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qkv.bulk.job import BulkJob
from qkv.bulk.parts import Part
from qkv.errors import UserError
from qkv.ray_cluster import cluster, shares

AHEAD = 2  # parts that a worker is given before it has finished the first


def on_ray(
    n_workers: int, address: str | None = None, device: str = "auto"
) -> Callable[[BulkJob, Sequence[Part]], Iterator[int]]:
    """Return what works on the parts of a job with so many Ray workers."""

    def work(job: BulkJob, parts: Sequence[Part]) -> Iterator[int]:
        with cluster(address, n_workers, "Bulk work on several workers") as ray:
            for outcome in _outcomes(job, parts, n_workers, shares(ray, n_workers, device)):
                if outcome["errno"]:
                    raise OSError(outcome["errno"], outcome["error"], outcome["file"])
                if outcome["error"]:
                    raise UserError(outcome["error"])
                yield outcome["n_lines"]

    return work


def _outcomes(
    job: BulkJob, parts: Sequence[Part], n_workers: int, share: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield what became of each part; Ray gives those of a lost worker to another one."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    # A part a block: what a worker is given, and loses, at a time.
    rows = ray.data.from_items(
        [{"number": part.number} for part in parts], override_num_blocks=len(parts)
    )
    pool = ray.data.ActorPoolStrategy(size=n_workers, max_tasks_in_flight_per_actor=AHEAD)
    outcomes = rows.map_batches(
        _PartWorker, fn_constructor_args=(job,), batch_size=1, compute=pool, **share
    )
    return iter(outcomes.iter_rows())


class _PartWorker:
    """A process that holds a model and works on the parts that it is given."""

    def __init__(self, job: BulkJob) -> None:
        self.job = job
        self.answer: Any = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Work on parts; errors are part of the outcome, because Ray would wrap them."""
        outcomes = [self._outcome(self.job.parts[int(number)]) for number in batch["number"]]
        return {name: [outcome[name] for outcome in outcomes] for name in outcomes[0]}

    def _outcome(self, part: Part) -> dict[str, Any]:
        outcome = {"n_lines": part.n_lines, "error": "", "errno": 0, "file": ""}
        try:
            self.answer = self.answer or self.job.open_answer()
            self.job.write(part, self.answer)
        except UserError as error:
            outcome["error"] = str(error)
        except OSError as error:
            outcome |= {"error": error.strerror or str(error), "errno": error.errno or 5}
            outcome["file"] = str(error.filename or self.job.path(part))
        return outcome
