"""Feed readers with broken files: `python -m bench.fuzz --reader gguf --cases 100000 --seed 1`.

Valid files are changed in their structure and read in a child process with little memory and time,
many cases in one; --processes of them work beside each other. With --seconds, a reader is fed for
so long at most, and the cases that were read are counted.
Each must be read, or refused with a UserError: any other exception, a crash, a hang, memory beyond
the bound or a file opened outside of the case's folder is a failure. Failures are told once for
each line of code, with the fewest changes that cause them, and kept under --out.

Counts go to docs/reliability.json; exits with 1 where a case fails. Linux only.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bench import fuzz_readers, outcomes
from bench.fuzz_readers import READERS, Files, Reader
from qkv.child_process import limit_memory
from qkv.errors import UserError

MEMORY = 1 << 30  # bytes that a case may take on top of what the process had
SECONDS = 20.0  # of a CPU that a case may take
PATIENCE = 200.0  # seconds that it may take where other processes have the CPU
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk would be waited for
FORBIDDEN = ("outside.txt", "/etc/passwd")  # names that mutations try to smuggle in
BATCH = 2000  # cases for one child, so that what leaks does not add up
TOGETHER = 250  # cases that one of several processes takes at a time


@dataclass
class Findings:
    """Outcomes of cases, and an example of each failure by its signature."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)  # case, message

    def __iadd__(self, other: Findings) -> Findings:
        self.counts.update(other.counts)
        for signature, (case, message) in other.failures.items():
            first = self.failures.get(signature, (case, message))
            self.failures[signature] = min(first, (case, message))
        return self

    def add(self, case: int, outcome: str, signature: str = "", message: str = "") -> None:
        """Count an outcome."""
        self.counts[outcome] += 1
        if outcome == "failed":
            self.failures.setdefault(signature, (case, message))


def changed_files(reader: Reader, name: str, seed: int, case: int) -> tuple[Files, list[int]]:
    """Return the valid files of a case and the seeds of its changes."""
    draw = random.Random(f"{name} {seed} {case}")
    return draw.choice(reader.seeds()), [
        draw.getrandbits(60) for _ in range(draw.choice((1, 1, 2, 3)))
    ]


def apply(reader: Reader, files: Files, changes: Iterable[int]) -> Files:
    """Make the changes one after the other."""
    for change in changes:
        files = reader.mutate(files, random.Random(change))
    return files


def judge(reader: Reader, files: Files, folder: Path) -> tuple[str, str, str]:
    """Read files; return the outcome and, of a failure, its signature and message."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    OPENED.clear()
    try:
        reader.read(folder)
        outcome = "read", "", ""
    except UserError:
        outcome = "refused", "", ""
    except BaseException as error:
        outcome = "failed", _signature(error), f"{type(error).__name__}: {str(error)[:300]}"
    outside = [path for path in OPENED if path.endswith(FORBIDDEN)]
    if outside:
        outcome = "failed", f"opens {outside[0]}", "a file outside of the folder"
    return outcome


OPENED: list[str] = []


def _watch_files(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str):
        OPENED.append(arguments[0])


def _signature(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/qkv/" in frame.filename]
    last = ours[-1] if ours else frames[-1]
    name = last.filename.rpartition("/src/")[2]
    return f"{type(error).__name__} at {name}:{last.lineno}"


def run_cases(
    reader: Reader, cases: Iterable[tuple[int, Files]], folder: Path
) -> Iterator[list[Any]]:
    """Judge cases in a child; yield [case, outcome, signature, message], also where it dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _judge_all(reader, cases, folder, writing)
    os.close(writing)
    case, ended = -1, False
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        for line in _lines_of(pipe, child):
            if line is None:
                os.kill(child, signal.SIGKILL)
                yield [case, "failed", "hang", f"more than {SECONDS:g} s, or {PATIENCE:g} idle"]
                break
            record = json.loads(line)
            ended = record == "end"
            if isinstance(record, int):
                case = record
            elif not ended:
                yield record
        else:
            if not ended:
                yield [case, "failed", "crash", "the process died"]
    os.waitpid(child, 0)


def _judge_all(
    reader: Reader, cases: Iterable[tuple[int, Files]], folder: Path, writing: int
) -> None:
    """Judge cases and write about each before and after it; never returns."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries in Rust print their panics
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        sys.addaudithook(_watch_files)
        limit_memory(MEMORY, more=True)
        for case, files in cases:
            os.write(writing, f"{case}\n".encode())
            record = [case, *judge(reader, files, folder)]
            os.write(writing, f"{json.dumps(record)}\n".encode())
        os.write(writing, b'"end"\n')
    finally:
        os._exit(0)


def _lines_of(pipe: Any, child: int) -> Iterator[bytes | None]:
    """Yield lines of a child, or None where it works or sleeps for too long before the next."""
    held, begun, used = b"", time.monotonic(), _cpu_seconds(child)
    while True:
        if not select.select([pipe], [], [], min(1.0, SECONDS))[0]:
            idle = time.monotonic() - begun > PATIENCE
            if idle or _cpu_seconds(child) - used > SECONDS:
                yield None
                return
            continue
        chunk = pipe.read(65_536)
        if not chunk:
            return
        begun, used = time.monotonic(), _cpu_seconds(child)
        *lines, held = (held + chunk).split(b"\n")
        yield from lines


def _cpu_seconds(child: int) -> float:
    """Return the time that a child has had a CPU for."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fuzz(name: str, n_cases: int, seed: int, folder: Path, start: int = 0) -> Findings:
    """Run cases of a reader, in one child after the other."""
    reader, findings = READERS[name], Findings()
    reader.seeds()  # made once, before any process is forked
    at, end = start, start + n_cases
    while at < end:
        numbers = range(at, min(at + BATCH, end))
        cases = ((n, apply(reader, *changed_files(reader, name, seed, n))) for n in numbers)
        done = at - 1
        for case, outcome, signature, message in run_cases(reader, cases, folder):
            findings.add(case, outcome, signature, message)
            done = case
        at = done + 1
    return findings


def fuzz_many(
    name: str, cases: range, seed: int, folder: Path, processes: int, seconds: float = math.inf
) -> Findings:
    """Run cases of a reader in several processes, or as many of them as there is time for."""
    READERS[name].seeds()  # made before the processes are forked, which share them
    batches = iter([cases[i : i + TOGETHER] for i in range(0, len(cases), TOGETHER)])
    findings, deadline = Findings(), time.monotonic() + seconds
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _read_valid, (name, folder)) as pool:

        def start(count: int) -> set[Future[Findings]]:
            some = islice(batches, count if time.monotonic() < deadline else 0)
            return {pool.submit(_fuzz_batch, name, batch, seed, folder) for batch in some}

        running = start(processes)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                findings += future.result()
            running |= start(len(done))
    return findings


def _read_valid(name: str, folder: Path) -> None:
    """Read the valid files, so that what is imported then is there in all forked processes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    reader = READERS[name]
    for files in {id(files): files for files in reader.seeds()}.values():
        judge(reader, files, _own(folder))


def _own(folder: Path) -> Path:
    return folder / str(os.getpid()) / "case"


def _fuzz_batch(name: str, cases: range, seed: int, folder: Path) -> Findings:
    return fuzz(name, len(cases), seed, _own(folder), cases.start)


def minimal(name: str, seed: int, case: int, signature: str, folder: Path) -> Files:
    """Return the files of a failing case with the fewest of its changes that still fail."""
    reader = READERS[name]
    files, changes = changed_files(reader, name, seed, case)
    for subset in [[change] for change in changes]:
        smaller = apply(reader, files, subset)
        for _, outcome, found, _ in run_cases(reader, [(case, smaller)], folder):
            if (outcome, found) == ("failed", signature):
                return smaller
    return apply(reader, files, changes)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("bench.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--reader", choices=[*READERS, "all"], nargs="+", default=["all"])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="most for one reader")
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for minimal failing cases")
    parser.add_argument("--no-save", action="store_true", help="leave docs/reliability.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    failed = False
    for name in READERS if "all" in options.reader else options.reader:
        with tempfile.TemporaryDirectory(prefix="qkv-fuzz-", dir=IN_MEMORY) as scratch:
            fuzz_readers.SCRATCH = Path(scratch)
            case_folder, begun = Path(scratch) / "a" / "case", time.perf_counter()
            cases = range(options.start, options.start + options.cases)
            given = (options.seed, case_folder, options.processes, options.seconds)
            findings = fuzz_many(name, cases, *given)
            counts = {key: findings.counts[key] for key in ("read", "refused", "failed")}
            spent = time.perf_counter() - begun
            rate = 1e3 * options.processes * spent / sum(counts.values())
            print(f"{name}: {counts} in {spent:.0f} s, {rate:.1f} ms a case", flush=True)
            for signature, (case, message) in findings.failures.items():
                print(f"  case {case}: {signature}: {message}", flush=True)
                if options.out:
                    files = minimal(name, options.seed, case, signature, case_folder)
                    target = options.out / f"{name}-{case}"
                    target.mkdir(parents=True, exist_ok=True)
                    for file, content in files.items():
                        (target / file).write_bytes(content)
        failed = failed or bool(findings.failures)
        if not options.no_save:
            total = {"cases": sum(counts.values()), **counts, "ms a case": round(rate, 1)}
            outcomes.save(f"fuzz.{name}", total, "bench.fuzz")
    sys.exit(failed)


if __name__ == "__main__":
    main()
