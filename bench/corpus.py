"""A large corpus, from text to the first steps: `python -m bench.corpus --gb 5`.

Writes so much text, begins a run on it, kills the run (SIGKILL) once a part of the text is encoded,
and starts it again: encoding must go on, and memory must not grow with the text. A third run finds
the encoded data and tells how long the first step then takes. Peaks are those of the process
(VmHWM), of which mapped pages that the system may drop at any time are a part. Linux only; records
the outcome in docs/reliability.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import outcomes
from bench.tiny_run import exit_code, said_in, train_in_child
from qkv.config import Recipe, recipe_from

N_WORDS = 50_000
LINES = 2_000  # written at a time
MOST_MIB = 2_000  # of a process, whatever the size of the text
FIRST_STEP = 60.0  # seconds within which a run on encoded data must begin


def write_text(path: Path, n_bytes: int, seed: int = 0) -> None:
    """Write lines of made-up words, the short ones often."""
    draw = random.Random(seed)
    letters = "etaoinshrdlucmfw"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(N_WORDS)]
    weights = [1 / (rank + 10) for rank in range(N_WORDS)]
    written = 0
    with path.open("w") as file:
        while written < n_bytes:
            drawn = draw.choices(words, weights, k=LINES * 12)
            lines = (" ".join(drawn[i : i + 12]) for i in range(0, len(drawn), 12))
            written += file.write(".\n".join(lines) + ".\n")


def recipe_of(text: Path) -> Recipe:
    """Describe a tiny language model that takes a few steps."""
    sizes = {"d_model": 32, "n_heads": 2, "n_kv_heads": 2, "d_ff": 64, "n_decoder_layers": 1}
    return recipe_from(
        {
            "task": "generate",
            "data": {"text": str(text), "documents": "line", "valid_share": 0.0001},
            "tokenizer": {"kind": "bpe", "vocab_size": 4000},
            "model": {"preset": "llama-tiny", **sizes, "max_length": 128},
            "train": {
                "steps": 5,
                "batch_tokens": 1024,
                "valid_every": 5,
                "checkpoint_every": 5,
                "tensorboard": False,
                "device": "cpu",
            },
        }
    )


def watch(child: int, until: Callable[[], bool]) -> tuple[float, float, bool]:
    """Wait for a condition or the process's end; return its peak in MiB, seconds, and which."""
    peak, start = 0.0, time.monotonic()
    while not until():
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return peak, time.monotonic() - start, False
        status = Path(f"/proc/{child}/status").read_text()
        lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
        peak = max([peak, *(int(line.split()[1]) / 1024 for line in lines)])
        time.sleep(0.1)
    return peak, time.monotonic() - start, True


def encoded_bytes(home: Path) -> int:
    """Return the bytes of token ids that are on the disk by now."""
    return sum(path.stat().st_size for path in home.glob("tokens/*/train.bin")) + sum(
        path.stat().st_size for path in home.glob("tokens/.*.writing/train.bin")
    )


def corpus(scratch: Path, n_bytes: int, home: Path) -> dict[str, Any]:
    """Write the text, encode it with a kill on the way, and start on what is encoded."""
    text, start = scratch / "text.txt", time.monotonic()
    write_text(text, n_bytes)
    found: dict[str, Any] = {"text MB": round(text.stat().st_size / 1e6)}
    found["seconds to write it"] = round(time.monotonic() - start)
    recipe = recipe_of(text)
    child = train_in_child(recipe, scratch / "run", False)
    cut = watch(child, lambda: encoded_bytes(home) > n_bytes // 10)  # about a third of it
    os.kill(child, signal.SIGKILL)
    exit_code(child)
    found |= {"MB encoded when killed": round(encoded_bytes(home) / 1e6, 1)}
    found |= {"seconds until then": round(cut[1]), "killed": cut[2]}
    peaks = [cut[0]]
    for name in ("encoded to the end", "encoded already"):
        folder = scratch / name.replace(" ", "-")
        child = train_in_child(recipe, folder, False)
        log = folder / "log.jsonl"
        peak, seconds, began = watch(child, lambda log=log: log.exists() and bool(log.read_text()))
        code = exit_code(child)
        assert code == 0, said_in(folder)
        found[f"seconds to the first report, {name}"] = round(seconds, 1)
        peaks.append(peak)
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    found |= {"steps": steps[-1], "MB of token ids": round(encoded_bytes(home) / 1e6, 1)}
    found["peak MiB of each run"] = [round(peak) for peak in peaks]
    flat = max(peaks) < MOST_MIB and seconds < FIRST_STEP
    return {**found, "passed": cut[2] and began and flat}


def main() -> None:
    parser = argparse.ArgumentParser("bench.corpus", description=__doc__.split("\n")[0])
    parser.add_argument("--gb", type=float, default=5.0, help="size of the text in 10⁹ bytes")
    parser.add_argument("--no-save", action="store_true", help="do not record the outcome")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qkv-corpus-") as scratch:
        home = Path(scratch) / "home"
        os.environ["QKV_HOME"] = str(home)
        outcome = corpus(Path(scratch), int(options.gb * 1e9), home)
    print("corpus", outcome)
    if not options.no_save:
        outcomes.save("corpus", outcome, "bench.corpus")
    sys.exit(not outcome["passed"])


if __name__ == "__main__":
    main()
