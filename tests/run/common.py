"""What tests of runs share: recipes with differences, sudden deaths, and all that a run leaves."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import qkv
from qkv.config import ModelConfig, Recipe, recipe_from, to_toml
from qkv.model import Encoder
from qkv.run.job import Job
from qkv.run.train import Run, prepare, train
from qkv.text import Tokenizer
from qkv.training import Trainer
from qkv.weights import read_tensors

# Few steps, with validations and checkpoints between them
TRAINING: dict[str, Any] = {
    "steps": 12,
    "batch_tokens": 256,
    "warmup": 8,
    "lr": 0.01,
    "valid_every": 4,
    "checkpoint_every": 5,
    "tensorboard": False,
    "device": "cpu",
    "precision": "float32",
}
SIZES: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 32}
ENCODER: dict[str, Any] = {"preset": "bert-tiny", **SIZES, "n_encoder_layers": 1}
DECODER: dict[str, Any] = {**SIZES, "n_decoder_layers": 1, "dropout": 0.1}


def ids_of(tokenizer: Tokenizer) -> dict[str, int]:
    """What a model's config has of its tokenizer."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
    return {"vocab_size": len(tokenizer), **ids}


def untaught(tokenizer: Tokenizer, times: float = 1.0, **sizes: Any) -> Encoder:
    """An encoder that never learnt anything, in float64; `times` matrices see more of the text."""
    usual: dict[str, Any] = {
        "family": "encoder",
        "n_encoder_layers": 2,
        "n_decoder_layers": 0,
        "d_model": 16,
        "n_heads": 2,
        "d_ff": 24,
        "positions": "learned",
        "n_segments": 2,
        "max_length": 24,
        "dropout": 0.0,
        **ids_of(tokenizer),
    }
    torch.manual_seed(0)
    model = Encoder(ModelConfig.from_dict({**usual, **sizes})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(times if weight.ndim > 1 else 1)
    return model


class Killed(BaseException):
    """As sudden as a signal."""


def with_differences(values: dict[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's plain values with others, which are named section_key."""
    for name, value in differences.items():
        section, _, key = name.partition("_")
        values.setdefault(section, {})[key] = value
    return values


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_records(path: Path, *records: object) -> Path:
    return write_lines(path, map(json.dumps, records))


def data_files(
    setting: str,
    folder: Path,
    pattern: str,
    write: Callable[[Path, int, int], object],
    seed: int = 1,
    **sizes: int,
) -> dict[str, str]:
    """Settings of files, the first to train on and the second to validate with.

    Those that are not there yet are written, each of so many examples and by a seed of its own.
    """
    paths = [folder / pattern.format(name) for name in sizes]
    for number, (path, n) in enumerate(zip(paths, sizes.values(), strict=True), seed):
        if not path.exists():
            write(path, n, number)
    return {setting: str(paths[0]), f"valid_{setting}": str(paths[1])}


@dataclass(frozen=True)
class Runs:
    """Runs of a task's tests, of which each may have settings of its own, named section_key.

    `values` gives a folder's recipe as plain values, and sees that its data is there.
    """

    values: Callable[..., dict[str, Any]]
    name: str = "tiny"  # of the recipe, as a file
    learns: Mapping[str, Any] = field(default_factory=dict)  # with which the model learns its task
    trained: dict[tuple[Any, ...], Run] = field(default_factory=dict)

    def settings(self, folder: Path, *which: Any, **differences: Any) -> dict[str, Any]:
        return with_differences(self.values(folder, *which), differences)

    def recipe(self, folder: Path, *which: Any, **differences: Any) -> Recipe:
        return recipe_from(self.settings(folder, *which, **differences))

    def write_recipe(self, folder: Path, *which: Any, **differences: Any) -> Path:
        """The data and the recipe as files, as a person would have them."""
        path = folder / f"{self.name}.toml"
        path.write_text(to_toml(self.settings(folder, *which, **differences)), encoding="utf-8")
        return path

    def run(self, folder: Path, out: str = "run", *which: Any, **differences: Any) -> Run:
        """Train in `folder`/out without a word."""
        recipe = self.recipe(folder, *which, **differences)
        return train(recipe, folder / out, console=silence())

    def learned(self, factory: pytest.TempPathFactory, *which: Any, **files: str) -> Run:
        """A run that has learnt its task, made once for all tests; nobody may change its folder.

        `files` are settings that name files in its data's folder; what it prints is in said.txt.
        """
        if which not in self.trained:
            name = "-".join(map(str, (self.values.__module__, *which)))
            with shared_folder(factory, name) as folder:
                if not (folder / "run.pickle").exists():
                    self._learn(folder, *which, **files)
                done = pickle.loads((folder / "run.pickle").read_bytes())
            self.trained[which] = replace(done, result=qkv.load(done.folder, device="cpu"))
        return self.trained[which]

    def _learn(self, folder: Path, *which: Any, **files: str) -> None:
        named = {name: str(folder / file) for name, file in files.items()}
        recipe = self.recipe(folder, *which, **self.learns, **named)
        with (folder / "said.txt").open("w") as said:
            done = train(recipe, folder / "run", console=Console(file=said))
        (folder / "run.pickle").write_bytes(pickle.dumps(replace(done, result=None)))

    def starting_from(self, start: Path, **model: Any) -> Runs:
        """Runs from a model that exists, whose sizes the recipe leaves out."""

        def values(folder: Path, *which: Any) -> dict[str, Any]:
            settings = self.settings(folder, *which, train_start_from=str(start))
            return settings | {"model": dict(model)}

        return Runs(values)

    def job(
        self, folder: Path, *which: Any, said: list[str] | None = None, **differences: Any
    ) -> Job:
        """A job that is prepared up to its first step; what it prints is put into `said`."""
        file = StringIO()
        job = prepare(
            self.recipe(folder, *which, **differences), folder / "job", Console(file=file)
        )
        if said is not None:
            said += [line.removeprefix("· ") for line in file.getvalue().splitlines()]
        return job

    def killed_at(
        self, step: int, folder: Path, out: str = "cut", *which: Any, **differences: Any
    ) -> Path:
        """A run that died in a step."""
        plain, recipe = Trainer.take_step, self.recipe(folder, *which, **differences)

        def dying(trainer: Trainer, batches: Any) -> None:
            plain(trainer, batches)
            if trainer.state.step == step:
                raise Killed

        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Trainer, "take_step", dying)
            train(recipe, folder / out, console=silence())
        return folder / out

    def resumed(self, folder: Path, out: str = "cut", *which: Any, **differences: Any) -> Path:
        """The same run, begun again and at its end."""
        torch.manual_seed(99)
        recipe = self.recipe(folder, *which, **differences)
        return train(recipe, folder / out, resume=True, console=silence()).folder

    def killed_and_resumed(
        self, step: int, folder: Path, out: str = "cut", *which: Any, **differences: Any
    ) -> Path:
        """A run that died in a step, was begun again, and came to its end."""
        self.killed_at(step, folder, out, *which, **differences)
        return self.resumed(folder, out, *which, **differences)


@contextmanager
def shared_folder(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A folder of this name that all processes of these tests share, one at a time."""
    root = factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def silence() -> Console:
    return Console(file=StringIO())


def read_log(folder: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def validations(folder: Path) -> list[Mapping[str, Any]]:
    """What the log says of each validation."""
    return [record for record in read_log(folder) if "valid_loss" in record]


def parts(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def differing(model: torch.nn.Module, folder: Path) -> set[str]:
    """The names of the weights that are not those of a model folder."""
    weights, own = read_tensors(folder / "model.safetensors"), parts(model)
    same = {
        name
        for name in own.keys() & weights.keys()
        if own[name].shape == weights[name].shape and torch.equal(own[name], weights[name])
    }
    return (own.keys() | weights.keys()) - same


FILES = ("config.json", "tokenizer.json", "recipe.toml")


def everything(folder: Path, files: Sequence[str] = FILES) -> dict[str, Any]:
    """All that a run leaves, but for how long it took."""
    log = [{**record, "tokens_per_second": 0} for record in read_log(folder)]
    newest = max((folder / "checkpoints").glob("step-*"))
    tensors = {
        f"{path.name}:{name}": tensor.tolist()
        for path in (*folder.glob("*model.safetensors"), newest)
        for name, tensor in read_tensors(path).items()
    }
    return {"log": log, **tensors, **{name: (folder / name).read_text() for name in files}}
