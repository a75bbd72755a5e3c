"""A training run of seconds, digits to words, in a child process that may be killed."""

from __future__ import annotations

import json
import os
import random
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from rich.console import Console
from torch.distributed import TCPStore

from qkv.cli import describe
from qkv.config import Recipe, recipe_from
from qkv.errors import UserError
from qkv.run.train import train
from qkv.weights import read_tensors

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SAID: dict[Path, IO[str]] = {}  # of the last child in each folder
STORES: dict[Path, TCPStore] = {}  # where the workers of the last run in each folder meet
HOST = "127.0.0.1"
REFUSED, CRASHED = 2, 3  # exit codes of a child: a sentence, or any other exception
TINY: dict[str, dict[str, Any]] = {
    "tokenizer": {"kind": "wordpiece", "vocab_size": 60},
    "model": {
        "d_model": 16,
        "n_heads": 2,
        "d_ff": 32,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
        "dropout": 0.2,
        "max_length": 32,
    },
    "train": {
        "steps": 120,
        "batch_tokens": 120,
        "accumulate": 2,
        "warmup": 30,
        "lr": 0.01,
        "valid_every": 25,
        "checkpoint_every": 10,
        "average": 3,
        "patience": 0,
        "valid_bleu": False,
        "tensorboard": False,
        "device": "cpu",
        "precision": "float32",
    },
}


def write_pairs(path: Path, n: int = 200, seed: int = 1) -> Path:
    """Write lines of digits and their words."""
    draw = random.Random(seed)
    lines = [[draw.randrange(10) for _ in range(draw.randint(1, 4))] for _ in range(n)]
    spelt = (f"{' '.join(map(str, d))}\t{' '.join(WORDS[i] for i in d)}\n" for d in lines)
    path.write_text("".join(spelt), "utf-8")
    return path


def tiny_recipe(pairs: Path, **train: Any) -> Recipe:
    """Describe the run; `train` are settings that differ."""
    values = {**TINY, "data": {"pairs": str(pairs), "max_length": 30}}
    values["train"] = {**TINY["train"], **train}
    return recipe_from(values)


def train_in_child(
    recipe: Recipe, folder: Path, resume: bool, before: Callable[[], object] = lambda: None
) -> int:
    """Fork a process that trains, and need not import anything; return its id.

    `before` is called in it first.
    """
    said = SAID[folder] = tempfile.TemporaryFile("w+")  # noqa: SIM115
    child = os.fork()
    if child:
        return child
    code = CRASHED
    try:
        code = _train(recipe, folder, resume, before, said)
        said.flush()
    finally:
        os._exit(code)


def start_workers(recipe: Recipe, folder: Path, resume: bool, n_workers: int) -> list[int]:
    """Fork processes that train together, or one alone; return their ids, the main one first."""
    if n_workers == 1:
        return [train_in_child(recipe, folder, resume)]
    # Held by this process, as a launcher does, so that it outlives any worker
    store = STORES[folder] = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    port = store.port

    def join(rank: int) -> Callable[[], None]:
        return lambda: os.environ.update(_launched(rank, n_workers, port))

    # The main one last, so that `said_in` returns what it has said
    started = [train_in_child(recipe, folder, resume, join(n)) for n in reversed(range(n_workers))]
    return started[::-1]


def _launched(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a worker."""
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sizes = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    place = {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {**ranks, **sizes, **place}


def _train(
    recipe: Recipe, folder: Path, resume: bool, before: Callable[[], object], said: IO[str]
) -> int:
    try:
        torch.set_num_threads(1)
        before()
        train(recipe, folder, resume=resume, console=Console(file=said))
    except UserError as error:
        said.write(f"error: {error}\n")
        return REFUSED
    except OSError as error:
        said.write(f"error: {describe(error)}\n")
        return REFUSED
    except SystemExit as error:  # of a worker that leaves the message to another one
        return int(error.code or 0)
    except BaseException:
        traceback.print_exc(file=said)
        return CRASHED
    return 0


def exit_code(child: int) -> int:
    """Wait for a child; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def said_in(folder: Path) -> str:
    """Return what the last child that trained in a folder has said."""
    SAID[folder].seek(0)
    return SAID[folder].read()


def all_bits(folder: Path) -> dict[str, Any]:
    """Return the log and the bytes of all final tensors: equal for equal runs.

    Of a sharded run these are the model's alone.
    """
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    newest = sorted((folder / "checkpoints").glob("step-*.safetensors"))[-1:]
    tensors = {
        f"{path.name}: {name}": tensor.numpy().tobytes()
        for path in (folder / "model.safetensors", *newest)
        for name, tensor in read_tensors(path).items()
    }
    return {"log": [{**record, "tokens_per_second": 0} for record in log], **tensors}
