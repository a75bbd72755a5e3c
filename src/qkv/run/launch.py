"""Starting the workers of a run on one machine, and ending them together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

HOST = "127.0.0.1"
POLL = 0.1  # seconds between looks at the workers
SETTLE = 1.0  # seconds after a failure, for the others that fail by the same cause
GRACE = 10.0  # seconds for the others to end before they are killed


def launch(n_workers: int, command: Sequence[str]) -> int:
    """Run a command in several processes that train together; return the exit code.

    The first Ctrl-C or SIGTERM is passed on, and the workers end with a checkpoint; a second one
    kills them. When one worker fails, all others are stopped.
    """
    # Held by this process, so that it outlives any worker: they meet there, and tell who failed.
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    workers = [
        subprocess.Popen(
            command,
            env={**os.environ, **_environment(rank, n_workers, store.port)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that a terminal's Ctrl-C reaches this process alone
        )
        for rank in range(n_workers)
    ]
    with _passed_on(workers):
        while all(worker.poll() is None for worker in workers):
            time.sleep(POLL)
        while any(worker.poll() is None for worker in workers) and not _failed(workers):
            time.sleep(POLL)
        if _failed(workers):
            time.sleep(SETTLE)
        failed = _failed(workers)
        _stop(workers)
    return _exit_code(failed)


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Tell a worker who it is, in the variables that torchrun sets."""
    threads = max(1, (os.cpu_count() or 1) // size)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
    }


@contextmanager
def _passed_on(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass the first signal on to the workers, and kill them at the second."""
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL if received else number)
        received.append(number)

    before: dict[int, Any] = {
        number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(workers: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Return the exit codes of the workers that failed, by their rank."""
    codes = {rank: worker.poll() for rank, worker in enumerate(workers)}
    return {rank: code for rank, code in codes.items() if code}


def _stop(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the workers that are left, and wait for them."""
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    deadline = time.monotonic() + GRACE
    for worker in workers:
        try:
            worker.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _exit_code(failed: dict[int, int]) -> int:
    """Choose the exit code of all; say which worker was killed, for it cannot say so itself."""
    for rank, code in failed.items():
        if code < 0:
            print(
                f"qkv: Worker {rank} was killed by {signal.Signals(-code).name}, perhaps for want "
                f"of memory, and the others were stopped; resume with --resume.",
                file=sys.stderr,
            )
            return 128 - code
    return max(failed.values(), default=0)
