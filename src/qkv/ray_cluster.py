"""A Ray cluster: that of many machines, or processes of this one for as long as they are needed."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qkv.errors import UserError, missing_package

START_SECONDS = 180  # for the processes of a cluster to start on a machine that is busy
OBJECT_BYTES = 1 << 27  # shared memory of a cluster of this machine: no data goes through it
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": str(START_SECONDS),
    "RAY_agent_register_timeout_ms": str(1000 * START_SECONDS),
}


@contextmanager
def cluster(address: str | None, n_workers: int, purpose: str) -> Iterator[Any]:
    """Join the cluster at an address ("auto": that of this machine), or start one here.

    `purpose` says in an error what Ray is wanted for.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise missing_package(purpose, "Ray", "ray") from error
    here = {
        "num_cpus": max(n_workers + 1, os.cpu_count() or 1),
        "include_dashboard": False,
        "object_store_memory": OBJECT_BYTES,
    }
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    settings |= {"address": address} if address else {"address": "local", **here}
    try:
        ray.init(**settings)
    except Exception as error:  # Ray has no class for it
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"The Ray cluster {address or 'of this machine'} does not answer ({reason}); check the "
            f"address, or try again when the machine is less busy."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def shares(ray: Any, n_workers: int, device: str) -> dict[str, Any]:
    """Share the cluster out: a GPU for each worker where there are any, and equally many cores."""
    there = ray.cluster_resources()
    n_gpus = int(there.get("GPU", 0)) if device != "cpu" else 0
    if device.startswith("cuda") and n_gpus < n_workers:
        raise UserError(
            f"The cluster has {n_gpus} GPUs, but each of {n_workers} workers needs one; ask for "
            f"fewer, or for --device cpu."
        )
    # One core is left for Ray's own work.
    cores = max(1, math.floor((there.get("CPU", 1) - 1) / n_workers))
    return {"num_cpus": cores, "num_gpus": 1 if n_gpus >= n_workers else 0}
