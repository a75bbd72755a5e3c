"""Python processes that need not import torch and qkv: forked from one that has imported them.

A new interpreter takes three seconds of a core to get to its first line. These are processes of
their own all the same, with the environment, streams, signals and exit code of a new interpreter.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.preload"])
# The command line, whose workers are forked too
FORKING_WORKERS = """
from qkv.cli import main
from tests.forking import fork_workers
fork_workers()
main()
"""


class Python:
    """`python ARGUMENTS`: `-m MODULE …`, `-c PROGRAM …` or `-P FILE`, and what it writes."""

    def __init__(
        self,
        arguments: Sequence[object],
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        terminal: int | None = None,
        merged: bool = False,
        stdin: bytes = b"",
    ) -> None:
        """Start; `merged`: stderr goes to stdout's pipe; a terminal is that of all streams."""
        read_in, in_ = FORKING.Pipe(duplex=False)
        read_out, out = FORKING.Pipe(duplex=False)
        read_err, err = FORKING.Pipe(duplex=False)
        streams = [read_in, out, out if merged else err]
        if terminal is not None:
            streams = [Connection(os.dup(terminal))] * 3
        words = [str(word) for word in arguments]
        env = dict(os.environ if environment is None else environment)
        place = str(cwd or Path.cwd())
        self._process = FORKING.Process(
            target=_become, args=(words, env, place, streams, terminal is not None)
        )
        self._process.start()
        os.write(in_.fileno(), stdin)
        for stream in {read_in, in_, out, err, *streams}:
            stream.close()
        self.stdout, self.stderr = _text(read_out), _text(read_err)

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self._process.pid
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait for the end; return what was written to stdout and stderr."""
        written = self.stdout.read(), self.stderr.read()
        self.wait()
        return written

    def __del__(self) -> None:
        """Close the pipes without a warning."""
        for stream in (self.stdout, self.stderr):
            stream.close()


class ForkedWorker:
    """What `subprocess.Popen` is to a launcher of `python -m MODULE …`, without a new interpreter.

    `fork_workers` patches it in, in a process from `Python` that starts others.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **settings: Any) -> None:
        assert command[0] == sys.executable
        assert settings == {"stdin": subprocess.DEVNULL, "start_new_session": True}
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            os._exit(_exit_code(command[1:], env))

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code. A worker may be deaf to all but SIGKILL."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self._wait(os.WNOHANG)) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.02)
        return code

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_worker(
    worker: Path, request: Mapping[str, Any], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """What `qkv.child_process.run_worker` does, without a new interpreter."""
    process = Python(["-P", worker], stdin=json.dumps(request).encode())
    try:
        code = process.wait(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
    out, err = process.communicate()
    return subprocess.CompletedProcess([], code, out.encode(), err.encode())


@cache
def mapped_bytes() -> int:
    """Memory that a process has mapped when it begins, which a bound on all of it must exceed."""
    program = "print(open('/proc/self/statm').read().split()[0])"
    return int(Python(["-c", program]).communicate()[0]) * os.sysconf("SC_PAGE_SIZE")


def fork_workers() -> None:
    """Let `qkv.run.launch` fork its workers from this process."""
    import torch

    from qkv.run import launch

    if torch.__version__ < "2.13":  # whose pools of threads do not survive every fork
        return
    launch.subprocess.Popen = ForkedWorker  # type: ignore[misc, assignment]


def _text(connection: Connection) -> TextIO:
    with connection:
        return os.fdopen(os.dup(connection.fileno()), encoding="utf-8")


def _become(
    arguments: list[str],
    environment: dict[str, str],
    cwd: str,
    streams: list[Connection],
    on_terminal: bool,
) -> None:
    """Be the process that was asked for."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if on_terminal:
        _take_terminal()
    os.chdir(cwd)
    code = _exit_code(arguments, environment)
    os._exit(code)


def _take_terminal() -> None:
    """Make the terminal at stdin that of this process, so that its Ctrl-C comes here."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _exit_code(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run what an interpreter would with these arguments; return the exit code."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    kind, what, *rest = arguments
    sys.argv = [kind, *rest]
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif kind == "-P":
            runpy.run_path(what, run_name="__main__")
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
        return code if isinstance(code, int) else int(code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
