"""Checkpoints: all state of a run in one file, which is whole or not there.

Where a model is sharded over workers, a checkpoint is a folder (sharded_checkpoint.py).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.weights import (
    StoredTensors,
    check_fit,
    checksum,
    damaged,
    read_metadata,
    read_tensors,
    write_tensors,
)

MOST_COPIED = 2**28  # bytes
FILES, FOLDERS = "step-*.safetensors", "step-*.sharded"
STATE = "state.json"  # counters, in a folder
FORMAT = "1"  # raised when an older qkv could no longer read what a newer one writes
CHECKSUM = "checksum"  # of tensors and state; checkpoints of earlier versions have none


@dataclass
class TrainState:
    """Counters of a run; with the weights and the optimizer's state, all that it remembers."""

    step: int = 0  # steps taken
    seconds: float = 0.0  # time spent training
    best: float | None = None  # best validation so far, by the run's metric; higher is better
    best_step: int = 0
    validated: int = 0  # step of the last validation
    stale: int = 0  # validations since the best
    snapshots: list[int] = field(default_factory=list)  # steps whose weights are kept to average


def checkpoint_path(folder: Path, step: int) -> Path:
    """Path of the checkpoint of a step."""
    return folder / f"step-{step:08d}.safetensors"


def copied_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: TrainState
) -> Callable[[], None]:
    """Copy weights, optimizer and counters to this machine's memory; return what writes them.

    Large ones that are in this memory already are written at once instead: beside a model that
    hardly fits there is no room for a copy.
    """
    path = checkpoint_path(folder, state.step)
    trained = trained_weights(model)
    tensors = {f"model.{name}": p.detach() for name, p in trained.items()}
    for name, parameter in trained.items():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    counters = json.dumps(dataclasses.asdict(state))

    def write(stored: dict[str, Tensor]) -> None:
        metadata = {"format": FORMAT, "state": counters, CHECKSUM: checksum(stored, counters)}
        write_tensors(path, stored, metadata)

    if sum(tensor.nbytes for tensor in tensors.values() if not tensor.is_cuda) > MOST_COPIED:
        write(tensors)
        return lambda: None
    copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    return lambda: write(copies)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainState:
    """Load a checkpoint into the model and the optimizer; return its counters.

    Raises UserError, and changes neither, where the content differs from its checksum.
    """
    state = read_state(path)
    fill(model, optimizer, read_checked(path), path)
    return state


def fill(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: Path
) -> None:
    """Copy the tensors of a checkpoint into the model and the optimizer."""
    weights = {key: value for key, value in tensors.items() if key.startswith("model.")}
    load_trained(model, {k.removeprefix("model."): v for k, v in weights.items()}, path)
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, kind, name = key.split(".", 2)
            optimizer.state[parameters[name]][kind] = value.to(parameters[name].device)


def trained_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that training changes, by name: a checkpoint needs no frozen ones."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def load_trained(model: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copy tensors into the weights that are trained, naming each one that does not fit."""
    trained = trained_weights(model)
    frozen = dict(model.named_parameters()).keys() - trained.keys()
    found = {name: tensor for name, tensor in tensors.items() if name not in frozen}
    check_fit(trained, found, where)
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(found[name])


def read_state(path: Path) -> TrainState:
    """Read a checkpoint's counters; raise UserError if the file is damaged or too new."""
    metadata = _read_folder(path) if path.is_dir() else read_metadata(path)
    version = metadata.get("format")
    if version not in (None, FORMAT):  # the first checkpoints had no number
        raise UserError(
            f"{path} is a checkpoint of format {version}, but this qkv reads format {FORMAT}; "
            f"continue with the newer qkv that wrote it."
        )
    try:
        return TrainState(**json.loads(metadata["state" if version else "progress"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no checkpoint: its training state is missing.") from error


def _read_folder(path: Path) -> dict[str, str]:
    """Read what a checkpoint's folder says of itself; that its files are whole is checked."""
    damaged = f"{path} is truncated or damaged and cannot be read"
    try:
        content = json.loads((path / STATE).read_text(encoding="utf-8"))
        sizes = dict(content["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{damaged} ({STATE}: {error}); delete it.") from error
    for name, size in sizes.items():
        if not (path / name).is_file() or (path / name).stat().st_size != size:
            raise UserError(f"{damaged} ({name} is not whole); delete it.")
    return {"format": str(content.get("format")), "state": json.dumps(content.get("state"))}


def has_checkpoints(folder: Path) -> bool:
    """Whether there is a checkpoint, readable or not."""
    return any(True for pattern in (FILES, FOLDERS) for _ in folder.glob(pattern))


def find_checkpoints(folder: Path) -> tuple[list[Path], dict[Path, UserError]]:
    """List the readable checkpoints, newest first, and why the others cannot be read."""
    readable: list[Path] = []
    unreadable: dict[Path, UserError] = {}
    paths = [path for pattern in (FILES, FOLDERS) for path in folder.glob(pattern)]
    for path in sorted(paths, reverse=True):
        try:
            read_state(path)
            readable.append(path)
        except UserError as error:
            unreadable[path] = error
    return readable, unreadable


def newest_whole(folder: Path) -> tuple[Path | None, dict[Path, UserError]]:
    """Find the newest checkpoint that fits its checksum, and why others cannot be read."""
    readable, unreadable = find_checkpoints(folder)
    for path in readable:
        try:
            if path.is_file():
                read_checked(path)
            return path, unreadable
        except UserError as error:
            unreadable[path] = error
    return None, unreadable


def read_checked(path: Path) -> dict[str, Tensor]:
    """Read tensors; raise UserError where they differ from the checksum beside them."""
    tensors, metadata = read_tensors(path), read_metadata(path)
    expected = metadata.get(CHECKSUM)
    if expected and checksum(tensors, metadata.get("state", "")) != expected:
        raise damaged(path)
    return tensors


def save_snapshot(folder: Path, model: nn.Module, step: int) -> None:
    """Write the weights of a validated step, to be averaged at the end."""
    weights = {name: p.detach() for name, p in trained_weights(model).items()}
    write_tensors(snapshot_path(folder, step), weights, {CHECKSUM: checksum(weights)})


def snapshot_path(folder: Path, step: int) -> Path:
    """Path of a validated step's weights, which are averaged at the end."""
    return folder / f"weights-{step:08d}.safetensors"


def sharded_path(folder: Path, step: int) -> Path:
    """Path of the folder that a sharded checkpoint is in."""
    return folder / f"step-{step:08d}.sharded"


def delete_old(folder: Path, step: int) -> None:
    """Delete all but the checkpoint of `step`, the one before it, and what they will average.

    Weights of later steps stay: the run has gone on while the checkpoint was written. Later
    checkpoints are damaged: the run was resumed from an earlier one, and has passed it since.
    """
    newest = checkpoint_path(folder, step).stem
    checkpoints = [path for path in find_checkpoints(folder)[0] if path.stem <= newest][:2]
    steps = {step for path in checkpoints for step in read_state(path).snapshots}
    needed = {*checkpoints, *(snapshot_path(folder, step) for step in steps)}
    ours = (FILES, FOLDERS, "weights-*.safetensors", ".*.writing")  # the last: of a kill
    for path in [path for pattern in ours for path in folder.glob(pattern)]:
        is_new = path.stem > snapshot_path(folder, step).stem
        if path in needed or (is_new and path.match("weights-*")):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def averaged(paths: list[Path]) -> dict[str, Tensor]:
    """Average the weights of several files, in float64; one weight at a time is read."""
    files = [StoredTensors(path) for path in paths]
    for path, file in zip(paths, files, strict=True):
        expected = read_metadata(path).get(CHECKSUM)
        if expected and file.checksum() != expected:
            raise damaged(path)

    def mean(name: str) -> Tensor:
        total = torch.zeros(files[0].shapes[name], dtype=torch.float64)
        for file in files:
            total += file[name]
        return (total / len(files)).float()

    return {name: mean(name) for name in files[0]}
