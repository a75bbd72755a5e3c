"""Checkpoints: everything a run remembers, in one file that is whole or not there."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.weights import load_weights, read_metadata, read_tensors, write_tensors


@dataclass
class Progress:
    """Where a run stands; with the weights and the optimiser's state, all that it remembers."""

    step: int = 0  # steps taken
    seconds: float = 0.0  # time spent training
    best: float | None = None  # the best validation so far, by the run's metric
    best_step: int = 0
    validated: int = 0  # the step of the last validation
    stale: int = 0  # validations since the best
    snapshots: list[int] = field(default_factory=list)  # steps whose weights are kept to average


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> Path:
    """Write the run's state as of `progress.step`, beside and moved into place."""
    path = folder / f"step-{progress.step:08d}.safetensors"
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    write_tensors(path, tensors, {"progress": json.dumps(dataclasses.asdict(progress))})
    return path


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a checkpoint's state into the model and the optimiser; return where the run stood."""
    tensors = read_tensors(path)
    load_weights(model, _under("model.", tensors), path)
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        for key, value in tensors.items():
            kind, _, rest = key.removeprefix("optimizer.").partition(".")
            if key.startswith("optimizer.") and rest == name:
                state[kind] = value.to(parameter.device)
    return read_progress(path)


def read_progress(path: Path) -> Progress:
    """Where the run stood when it wrote this checkpoint."""
    return Progress(**json.loads(read_metadata(path)["progress"]))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def newest_checkpoints(folder: Path, count: int) -> list[Path]:
    """The newest checkpoints that are whole, the newest first; truncated ones are passed over."""
    paths = sorted(folder.glob("step-*.safetensors"), reverse=True)
    return [path for path in paths if _is_whole(path)][:count]


def _is_whole(path: Path) -> bool:
    try:
        read_metadata(path)
    except UserError:
        return False
    return True


def snapshot_path(folder: Path, step: int) -> Path:
    """Where the weights of a validated step are kept, to average them at the end."""
    return folder / f"weights-{step:08d}.safetensors"


def tidy(folder: Path) -> None:
    """Keep two checkpoints, in case the newer is cut, and the weights that they will average."""
    checkpoints = newest_checkpoints(folder, 2)
    steps = {step for path in checkpoints for step in read_progress(path).snapshots}
    needed = {*checkpoints, *(snapshot_path(folder, step) for step in steps)}
    ours = ("step-*.safetensors", "weights-*.safetensors", ".*.writing")  # the last: of a kill
    for path in (path for pattern in ours for path in folder.glob(pattern)):
        if path not in needed:
            path.unlink()


def averaged(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of several files' weights, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in read_tensors(path).items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}
