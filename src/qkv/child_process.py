"""Scripts in processes of their own: bounded in time and memory, or many beside each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

OVER_LIMIT = (-9, -24, -25)  # ended by SIGKILL (no memory), SIGXCPU or SIGXFSZ


def run_worker(
    worker: Path, request: Mapping[str, Any], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a script that reads a JSON object from standard input, with what it writes.

    Raises `subprocess.TimeoutExpired` after so many seconds.
    """
    return subprocess.run(
        _command(worker),
        check=False,
        input=json.dumps(request).encode(),
        capture_output=True,
        timeout=seconds,
        env=_environment(),
    )


def start_worker(worker: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a script that reads requests from standard input and writes answers, until it ends."""
    pipe = subprocess.PIPE
    environment = {**_environment(), **variables}
    return subprocess.Popen(_command(worker), stdin=pipe, stdout=pipe, env=environment)


def _command(worker: Path) -> list[str]:
    return [sys.executable, "-P", str(worker)]


def _environment() -> dict[str, str]:
    """Return this process's environment, in which the script finds this package."""
    package = str(Path(__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def limit_memory(n_bytes: int, more: bool = False) -> None:
    """Let allocations beyond the bound fail in this process, where the operating system can.

    With `more`, the bound is for what comes on top of the memory that is mapped already.
    """
    try:
        import resource

        if more:
            n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            n_bytes += n_pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
    except (ImportError, OSError, ValueError):
        pass  # then the process is still bounded in time and output


def limit_file_size(n_bytes: int) -> None:
    """Let files end this process that become larger, where the operating system can."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
    except (ImportError, OSError, ValueError):
        pass


def stop(reason: str, code: int) -> NoReturn:
    """Leave a worker with an exit code, and the reason on standard error."""
    sys.stderr.write(reason)
    sys.stderr.flush()
    sys.exit(code)
