"""A text ten times as large as the memory that is left is encoded and trained on."""

import json
import os
import subprocess
import sys
from itertools import repeat
from pathlib import Path
from random import Random

import pytest

from qkv.config import TokenizerConfig
from qkv.text import train_tokenizer

ALLOWANCE = 6_000_000  # bytes of memory beyond what the process has when it has begun
SIZE = 10 * ALLOWANCE

# How much memory is needed must not depend on how many cores there are.
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_ARENA_MAX": "1",
}

PROGRAM = """
import io, json, resource, sys, threading
from pathlib import Path

from rich.console import Console

import qkv
from qkv.config import recipe_from

folder, allowance = Path(sys.argv[1]), int(sys.argv[2])
threading.stack_size(256 * 1024)  # eight megabytes each, unless told otherwise


def train(text, steps):
    recipe = {
        "task": "generate",
        "data": {"text": str(folder / text), "valid_text": str(folder / "small"), "max_length": 16,
                 "processes": 1},
        "tokenizer": {"path": str(folder / "tokenizer.json")},
        "model": {"preset": "llama-tiny", "d_model": 16, "n_heads": 2, "d_ff": 32,
                  "n_decoder_layers": 1, "max_length": 16},
        "train": {"steps": steps, "batch_tokens": 64, "lr": 0.03, "warmup": 5, "device": "cpu",
                  "precision": "float32", "valid_every": steps, "tensorboard": False},
    }
    quiet = Console(file=io.StringIO())
    run = qkv.train(recipe_from(recipe), folder / f"{text}_run", console=quiet)
    log = (run.folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in log]


train("small", 2)  # what is imported or made ready at first use is there now
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
limit = int(status["VmData"].split()[0]) * 1024 + allowance
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    (folder / "large" / "one.txt").read_text()
except MemoryError:
    print("too large to be read at once")
losses = train("large", 60)
print("learnt" if losses[-1] < 0.8 * losses[0] else losses)
"""


def write(folder: Path, block: str, n_blocks: int) -> None:
    """Write a text of few and very long words, quick to encode: one document, and many."""
    folder.mkdir()
    with (folder / "one.txt").open("w") as file:
        file.writelines(repeat(block, n_blocks))
    objects = "".join(json.dumps({"text": line}) + "\n" for line in block.splitlines())
    with (folder / "many.jsonl").open("w") as file:
        file.writelines(repeat(objects, n_blocks // 4))


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory in Linux's way")
def test_a_text_ten_times_the_memory_trains(tmp_path: Path) -> None:
    random = Random(0)
    parts = ["".join(random.choices("abcdefghij", k=48)) for _ in range(4)]
    words = ["".join(random.choices(parts, k=5)) for _ in range(20)]
    block = "".join(" ".join(random.choices(words, k=8)) + ".\n" for _ in range(200))
    train_tokenizer([block], TokenizerConfig(vocab_size=500)).save(tmp_path / "tokenizer.json")
    write(tmp_path / "small", block[:2000], 4)
    write(tmp_path / "large", block, int(0.8 * SIZE / len(block)) + 1)
    assert sum(path.stat().st_size for path in (tmp_path / "large").iterdir()) >= SIZE
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(ALLOWANCE)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout.splitlines() == ["too large to be read at once", "learnt"], done.stderr
