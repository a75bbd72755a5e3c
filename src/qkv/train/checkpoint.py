"""Checkpoints: everything a run remembers, in one file that is whole or not there."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.weights import load_weights, read_tensors, write_tensors


@dataclass
class Progress:
    """Where a run stands; with the weights and the optimiser's state, all that it remembers."""

    step: int = 0  # steps taken
    seconds: float = 0.0  # time spent training
    best: float | None = None  # the best validation so far, by the run's metric
    best_step: int = 0
    stale: int = 0  # validations since then
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
    tensors, metadata = read_tensors(path)
    load_weights(model, _under("model.", tensors), path)
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        for key, value in tensors.items():
            kind, _, rest = key.removeprefix("optimizer.").partition(".")
            if key.startswith("optimizer.") and rest == name:
                state[kind] = value if kind == "step" else value.to(parameter.device)
    return Progress(**json.loads(metadata["progress"]))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; a truncated one is passed over for the one before."""
    for path in sorted(folder.glob("step-*.safetensors"), reverse=True):
        try:
            read_tensors(path)
        except UserError:
            continue
        return path
    return None


def keep_newest(folder: Path, pattern: str, count: int) -> None:
    """Delete all but the newest `count` files of a kind."""
    for path in sorted(folder.glob(pattern))[:-count]:
        path.unlink(missing_ok=True)


def averaged(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of several files' weights, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in read_tensors(path)[0].items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}
