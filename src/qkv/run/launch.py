"""Starting the workers of a run on one machine, and ending them together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from qkv.training.distribution import RESTART_COUNT

HOST = "127.0.0.1"
RESUME = "QKV_RESUME"  # what tells workers the command that users are to resume with
MISTAKE = 2  # exit code of a worker that found one in the recipe or the data
POLL = 0.1  # seconds between looks at the workers
SETTLE = 1.0  # seconds after a failure, for the others that fail by the same cause
GRACE = 10.0  # seconds for the others to end before they are killed


def launch(n_workers: int, command: Sequence[str], resume: str, restarts: int = 0) -> int:
    """Run a command in several processes that train together; return the exit code.

    The first Ctrl-C or SIGTERM is passed on, and the workers end with a checkpoint; a second one
    kills them. When one worker fails, all others are stopped; where it was killed or crashed, all
    are started again up to `restarts` times, and resume. `resume` is the command that users are
    then told to resume with.
    """
    for attempt in range(restarts + 1):
        environment = {RESTART_COUNT: str(attempt), RESUME: resume}
        failed, stopped = _run_workers(n_workers, command, environment)
        # A worker that was killed or crashed; a mistake would only be made again.
        is_accident = any(code not in (0, MISTAKE) for code in failed.values())
        if stopped or attempt == restarts or not is_accident:
            break
        print(
            f"qkv: {_accident(failed)}; the run goes on from its last checkpoint (restart "
            f"{attempt + 1} of {restarts}).",
            file=sys.stderr,
        )
    return _exit_code(failed, resume)


def _run_workers(
    n_workers: int, command: Sequence[str], environment: Mapping[str, str]
) -> tuple[dict[int, int], bool]:
    """Start all workers and wait for them; return who failed, and whether a signal came."""
    # Held by this process, so that it outlives any worker: they meet there, and tell who failed.
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    workers = [
        subprocess.Popen(
            command,
            env={**os.environ, **environment, **_environment(rank, n_workers, store.port)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that a terminal's Ctrl-C reaches this process alone
        )
        for rank in range(n_workers)
    ]
    with _passed_on(workers) as received:
        while all(worker.poll() is None for worker in workers):
            time.sleep(POLL)
        while any(worker.poll() is None for worker in workers) and not _failed(workers):
            time.sleep(POLL)
        if _failed(workers):
            time.sleep(SETTLE)
        failed = _failed(workers)
        _stop(workers)
    return failed, bool(received)


def _accident(failed: dict[int, int]) -> str:
    killed = {rank: code for rank, code in failed.items() if code < 0}
    for rank, code in killed.items():
        return f"Worker {rank} was killed by {signal.Signals(-code).name}"
    return f"Worker {min(failed)} failed"


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
def _passed_on(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
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
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(workers: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Return the exit codes of the workers that failed, by their rank."""
    codes = {rank: worker.poll() for rank, worker in enumerate(workers)}
    return {rank: code for rank, code in codes.items() if code}


def _stop(workers: Sequence[subprocess.Popen[bytes]]) -> None:
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


def _exit_code(failed: dict[int, int], resume: str) -> int:
    """Choose the exit code of all; say which worker was killed, for it cannot say so itself."""
    for code in failed.values():
        if code < 0:
            print(
                f"qkv: {_accident(failed)}, perhaps for want of memory, and the others were "
                f"stopped; resume with:\n  {resume}",
                file=sys.stderr,
            )
            return 128 - code
    return max(failed.values(), default=0)
