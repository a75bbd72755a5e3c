"""A large corpus, from text to the first steps: `python -m bench.corpus --gigabytes 5`.

Writes so much text in several files, and starts `qkv train` on it, which encodes it in several
processes. At a fifth of the text, the command is killed (SIGKILL); started again, it must go on
from there. A third start finds the encoded text and tells how long the first step then takes.

Memory is that of each process by itself, at a tenth of the text and at the end: the peak of what it
holds (VmHWM), and what it has allocated (RssAnon), without pages of files that the system may drop.
Linux only; --save records the outcome in docs/reliability.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench import outcomes
from qkv.config import DataConfig, TokenizerConfig, to_toml
from qkv.data import hold_out, load_corpus
from qkv.data.files import chunks
from qkv.text import train_tokenizer

N_WORDS = 50_000
N_CLAUSES = 1 << 16
FILE = 1 << 28  # bytes
COMPARED = 1 << 24  # bytes that are encoded with one process and with several
FIRST, KILLED = 0.1, 0.2  # shares of the text at which memory is looked at, and the command killed
MOST_GROWTH = 1.25  # times the memory at a tenth of the text
PATIENCE = 5.0  # seconds after which nothing that a killed command has started may be left
FIRST_STEP = 60.0  # seconds within which a run on encoded data must begin


@cache
def clauses() -> list[str]:
    """Make up clauses of six made-up words, some of which are much more common than others."""
    draw = random.Random(0)
    letters = "etaoinshrdlucmfw"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(N_WORDS)]
    sums = np.cumsum(1 / (np.arange(N_WORDS) + 10)).tolist()
    return [" ".join(draw.choices(words, cum_weights=sums, k=6)) for _ in range(N_CLAUSES)]


def write_text(path: Path, n_bytes: int, seed: int) -> None:
    """Write lines of two made-up clauses."""
    made, draw, left = clauses(), np.random.default_rng(seed), n_bytes
    with path.open("w") as file:
        while left > 0:
            pairs = draw.integers(N_CLAUSES, size=(1 << 15, 2)).tolist()
            text = "".join([f"{made[first]} {made[second]}.\n" for first, second in pairs])
            left -= file.write(text[:left])


def write_texts(folder: Path, n_bytes: int, processes: int) -> list[Path]:
    """Write files of FILE bytes and a smaller one, in several processes."""
    folder.mkdir()
    sizes = [FILE] * (n_bytes // FILE) + ([n_bytes % FILE] if n_bytes % FILE else [])
    paths = [folder / f"text-{number:03d}.txt" for number in range(len(sizes))]
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(write_text, paths, sizes, range(len(sizes))))
    return paths


def write_recipe(path: Path, texts: Path, processes: int) -> Path:
    """Describe a tiny language model that takes a few steps."""
    sizes = {"d_model": 32, "n_heads": 2, "n_kv_heads": 2, "d_ff": 64, "n_decoder_layers": 1}
    data = {"text": str(texts), "documents": "line", "valid_share": 0.0001, "processes": processes}
    train = {"steps": 1, "batch_tokens": 1024, "valid_every": 1, "checkpoint_every": 1}
    recipe = {
        "task": "generate",
        "data": data,
        "tokenizer": {"kind": "bpe", "vocab_size": 4000},
        "model": {"preset": "llama-tiny", **sizes, "max_length": 128},
        "train": {**train, "tensorboard": False, "device": "cpu"},
    }
    path.write_text(to_toml(recipe), "utf-8")
    return path


class Command:
    """`qkv train` in a process of its own, with those that it starts."""

    def __init__(self, recipe: Path, out: Path) -> None:
        self.begun, self.out = time.monotonic(), out
        self.said = out.with_suffix(".log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qkv", "train", str(recipe), "--out", str(out)],
            stdout=self.said,
            stderr=self.said,
        )

    def processes(self) -> list[int]:
        """Return the ids of the command and of the processes that it started."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        found = [int(word) for path in children for word in _read(path).split()]
        return [self.process.pid, *sorted(found)]

    def memory(self) -> list[tuple[int, int]]:
        """Return peak and allocated MiB of each process, the command itself first."""
        sizes = []
        for process in self.processes():
            lines = _read(Path(f"/proc/{process}/status")).splitlines()
            fields = {words[0]: words[1] for line in lines if len(words := line.split()) > 1}
            if "VmHWM:" in fields:
                sizes.append((int(fields["VmHWM:"]) // 1024, int(fields["RssAnon:"]) // 1024))
        return sizes

    def wait(self, until: Callable[[], bool]) -> float:
        """Wait for a condition; return the seconds since the start."""
        while not until():
            if self.process.poll() is not None and not until():
                said = _read(Path(self.said.name))
                raise SystemExit(f"The command ended ({self.process.returncode}): {said[-3000:]}")
            time.sleep(0.02)
        return time.monotonic() - self.begun

    def first_step(self) -> float:
        """Wait for the first step in the log; return the seconds since the start."""
        log = self.out / "log.jsonl"
        return self.wait(lambda: '"loss"' in _read(log))

    def finish(self) -> None:
        """Wait for the end, which must be a good one."""
        self.wait(lambda: self.process.poll() is not None)
        if self.process.returncode:
            raise SystemExit(_read(Path(self.said.name))[-3000:])


def _read(path: Path) -> str:
    """Read a file that may be gone."""
    try:
        return path.read_text()
    except OSError:
        return ""


def encoded_share(home: Path, n_bytes: int) -> float:
    """Return how much of the text is on the disk as token ids; 1 where all is."""
    for path in home.glob("tokens/*/train.bin"):
        if not path.parent.name.startswith("."):
            return 1.0
    for path in home.glob("tokens/.*.writing/journal.json"):
        try:
            facts = json.loads(_read(path))["facts"]
        except ValueError:  # replaced while it was read
            continue
        lines = sum(facts.get(f"{use}.tokens", 0) > 0 for use in ("train", "valid"))
        if lines:  # line ends are not among the bytes of documents
            return min(1.0, sum(facts[f"{use}.bytes"] for use in ("train", "valid")) / n_bytes)
    return 0.0


def encode(scratch: Path, recipe: Path, home: Path, n_bytes: int) -> dict[str, Any]:
    """Start the command, kill it on the way, and start it again."""
    command = Command(recipe, scratch / "killed")
    command.wait(lambda: encoded_share(home, n_bytes) > FIRST)
    early = command.memory()
    seconds = command.wait(lambda: encoded_share(home, n_bytes) > KILLED)
    ids = command.processes()
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait()
    time.sleep(PATIENCE)
    left = [process for process in ids if Path(f"/proc/{process}").exists()]
    killed = encoded_share(home, n_bytes)
    command = Command(recipe, scratch / "resumed")
    command.wait(lambda: encoded_share(home, n_bytes) > killed)
    resumed, begun = encoded_share(home, n_bytes), time.monotonic()
    late = early
    while (share := encoded_share(home, n_bytes)) < 1:
        late = command.memory() if len(command.processes()) == len(ids) else late
        command.wait(lambda share=share: encoded_share(home, n_bytes) > share)
    spent = time.monotonic() - begun
    first = command.first_step()
    command.finish()
    return {
        "seconds to the kill": round(seconds),
        f"processes left {PATIENCE:g} s after it": len(left),
        "share encoded when killed": round(killed, 3),
        "and when it went on": round(resumed, 3),
        "MB/s": round((1 - resumed) * n_bytes / 1e6 / spent, 1),
        "seconds to the first step, encoding the rest": round(first, 1),
        **_growth(early, late),
        "passed": not left and resumed >= killed and _is_flat(early, late),
    }


def _growth(early: list[tuple[int, int]], late: list[tuple[int, int]]) -> dict[str, Any]:
    """Name the memory of the command and of the largest process that it started."""
    found: dict[str, Any] = {}
    for kind, number in (("peak", 0), ("allocated", 1)):
        sides = [[sizes[number] for sizes in look] for look in (early, late)]
        found[f"{kind} MiB, command"] = [side[0] for side in sides]
        found[f"{kind} MiB, each process"] = [max(side[1:], default=0) for side in sides]
    return found


def _is_flat(early: list[tuple[int, int]], late: list[tuple[int, int]]) -> bool:
    """Whether no process has allocated much more at the end."""
    return all(
        max(size for _, size in after) <= MOST_GROWTH * max(size for _, size in before) + 32
        for before, after in ((early[:1], late[:1]), (early[1:] or early, late[1:] or late))
    )


def same_bytes(scratch: Path, processes: int) -> bool:
    """Encode a little text with one process and with several; compare the digests."""
    path = scratch / "compared.txt"
    write_text(path, COMPARED, seed=1)
    sample = next(chunks(path))
    tokenizer = train_tokenizer([sample], TokenizerConfig(kind="bpe", vocab_size=1000))
    digests = set()
    for number in (1, max(2, processes)):
        os.environ["QKV_HOME"] = str(scratch / f"compared-{number}")
        config = DataConfig(text=(str(path),), documents="line", processes=number)
        digests.add(load_corpus(config, tokenizer, hold_out(config)).train.digest)
    return len(digests) == 1


def corpus(scratch: Path, n_bytes: int, processes: int) -> dict[str, Any]:
    """Write the text, encode it with a kill on the way, and start on what is encoded."""
    found: dict[str, Any] = {"text GB": round(n_bytes / 1e9, 3), "processes": processes}
    found["same bytes as with one process"] = same_bytes(scratch, processes)
    start = time.monotonic()
    paths = write_texts(scratch / "texts", n_bytes, processes)
    found["seconds to write it"] = round(time.monotonic() - start)
    recipe = write_recipe(scratch / "recipe.toml", scratch / "texts", processes)
    home = scratch / "home"
    os.environ["QKV_HOME"] = str(home)
    found |= encode(scratch, recipe, home, sum(path.stat().st_size for path in paths))
    again = Command(recipe, scratch / "again")
    seconds = again.first_step()
    found["seconds to the first step, encoded already"] = round(seconds, 1)
    found["peak MiB then"] = again.memory()[0][0] if again.memory() else math.nan
    again.finish()
    stored = sum(path.stat().st_size for path in home.glob("tokens/*/*.bin"))
    found["GB of token ids"] = round(stored / 1e9, 3)
    sound = found["passed"] and found["same bytes as with one process"]
    return {**found, "passed": sound and seconds < FIRST_STEP}


def main() -> None:
    parser = argparse.ArgumentParser("bench.corpus", description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of the text, 10⁹ bytes")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="where the text is written and deleted again")
    parser.add_argument("--save", action="store_true", help="record it in docs/reliability.json")
    options = parser.parse_args()
    n_bytes = int(options.gigabytes * 1e9)
    with tempfile.TemporaryDirectory(prefix="qkv-corpus-", dir=options.folder) as scratch:
        room = shutil.disk_usage(scratch).free
        if room < 3 * n_bytes:
            raise SystemExit(f"{scratch} has room for {room / 1e9:.1f} GB, but needs three times.")
        start = time.monotonic()
        outcome = corpus(Path(scratch), n_bytes, options.processes)
    outcome["seconds"] = round(time.monotonic() - start)
    print("corpus", outcome)
    if options.save:
        outcomes.save("corpus", outcome, "bench.corpus")
    sys.exit(not outcome["passed"])


if __name__ == "__main__":
    main()
