"""A text ten times as large as the memory that is left is encoded and trained on."""

from __future__ import annotations

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

ALLOWANCE = 8_000_000  # bytes of memory beyond what the process has when it has begun
SIZE = 10 * ALLOWANCE

# How much memory is needed must not depend on how many cores there are.
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1",
}  # fmt: skip

PROGRAM = """
import resource, sys
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from qkv.config import DataConfig
from qkv.data import Specials, WindowStream, load_corpus
from qkv.text import Tokenizer

folder, allowance = Path(sys.argv[1]), int(sys.argv[2])
tokenizer = Tokenizer.load(folder / "tokenizer.json")
special = Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
model = nn.Sequential(nn.Embedding(len(tokenizer), 16), nn.Linear(16, len(tokenizer)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)


def train(text, n_steps):
    corpus = load_corpus(DataConfig(text=(str(folder / text),)), tokenizer, folder)
    stream = WindowStream(corpus.train, special, length=16, rows=4, mode="rows", across=False)
    for (batch,) in islice(stream.steps_from(), n_steps):
        logits = model(batch.target.tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


losses = list(train("small", 2))  # what is imported or made ready at first use is there now
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
limit = int(status["VmData"].split()[0]) * 1024 + allowance
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    (folder / "large" / "one.txt").read_text()
except MemoryError:
    print("too large to be read at once")
losses += train("large", 60)
print("learnt" if losses[-1] < 0.8 * losses[0] else losses)
"""


def write(folder: Path, block: str, n_blocks: int) -> None:
    """Write a text of few and long words, which are quick to encode: one document, and many."""
    folder.mkdir()
    with (folder / "one.txt").open("w") as file:
        file.writelines(repeat(block, n_blocks))
    objects = "".join(json.dumps({"text": line}) + "\n" for line in block.splitlines())
    with (folder / "many.jsonl").open("w") as file:
        file.writelines(repeat(objects, n_blocks // 4))


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory in Linux's way")
def test_a_text_ten_times_the_memory_trains(tmp_path: Path) -> None:
    random = Random(0)
    words = ["".join(random.choices("abcdefghij", k=48)) for _ in range(20)]
    block = "".join(" ".join(random.choices(words, k=8)) + ".\n" for _ in range(1000))
    train_tokenizer([block], TokenizerConfig(vocab_size=500)).save(tmp_path / "tokenizer.json")
    write(tmp_path / "small", block[:2000], 4)
    write(tmp_path / "large", block, int(0.8 * SIZE / len(block)) + 1)
    assert sum(path.stat().st_size for path in (tmp_path / "large").iterdir()) >= SIZE
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(ALLOWANCE)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout.splitlines() == ["too large to be read at once", "learnt"], done.stderr
