"""Checkpoints of sharded models: a folder to which every worker writes its part.

The tensors are in the format of torch.distributed.checkpoint, which reads them back on any number
of workers. Beside them, state.json has the counters, and the size of each file, so that a damaged
checkpoint is told from a whole one.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.files import write_json
from qkv.training.checkpoint import FORMAT, STATE, TrainState, sharded_path
from qkv.training.distribution import Distribution
from qkv.training.tensor_parallel import row_orders

if TYPE_CHECKING:
    from qkv.training.layout import Sharded


@cache
def _own_group() -> Any:
    """Return a group in which workers speak of checkpoints, so as not to disturb training."""
    return torch.distributed.new_group(backend="gloo")


def copied_parts(
    folder: Path,
    tensors: dict[str, Any],
    state: TrainState,
    tensor_size: int,
    workers: Distribution,
) -> Callable[[], None]:
    """Copy each worker's part to its machine's memory; return what writes it.

    Parts are written beside the checkpoint's place, and all of it is moved there at once.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import async_save

    path = sharded_path(folder, state.step)
    beside = path.with_name(f".{path.name}.writing")
    counters = dataclasses.asdict(state)
    if workers.is_main:
        shutil.rmtree(beside, ignore_errors=True)  # of a kill
    workers.barrier()
    written: Any = async_save(
        tensors, storage_writer=FileSystemWriter(beside), process_group=_own_group()
    )

    def write() -> None:
        written.result()
        if not workers.is_main:  # whose result comes when all have written
            return
        sizes = {file.name: file.stat().st_size for file in beside.iterdir()}
        about = {"format": FORMAT, "tensor_parallel": tensor_size, "files": sizes}
        write_json(beside / STATE, {**about, "state": counters})
        shutil.rmtree(path, ignore_errors=True)
        beside.rename(path)

    return write


def read_whole(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint as those of a whole model."""
    shapes = _shapes(path)
    orders = row_orders(model, _tensor_size(path))
    tensors = _read(path, {key: torch.empty(size, dtype=kind) for key, (size, kind) in shapes})
    for key, value in tensors.items():
        order = orders.get(name_of(key))
        if order is not None and value.ndim:
            tensors[key] = value[order.argsort()]
    return tensors


def read_parts(path: Path, layout: Sharded) -> dict[str, Tensor]:
    """Read this worker's part of every tensor.

    Matrices whose rows were arranged for another number of workers are read whole, one at a time.
    """
    fused = set(row_orders(layout.model, 2))
    same = _tensor_size(path) == layout.tensor_size
    before = row_orders(layout.model, _tensor_size(path))
    found: dict[str, Tensor] = {}
    targets: dict[str, Any] = {}
    for key, (size, kind) in _shapes(path):
        name = name_of(key)
        if same or name not in fused or not size:
            targets[key] = layout.empty_shard(name, size, kind)
            continue
        whole = _read(path, {key: torch.empty(size, dtype=kind)})[key]
        found[key] = layout.own_part(name, whole[before[name].argsort()] if before else whole)
    read = _read(path, targets)
    return found | {key: getattr(value, "_local_tensor", value) for key, value in read.items()}


def _read(path: Path, tensors: dict[str, Any]) -> dict[str, Any]:
    """Fill tensors, or parts of them, from the files; each worker reads by itself."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that only this process reads
            load(tensors, storage_reader=FileSystemReader(path), no_dist=True)
    except OSError as error:
        raise UserError(f"{path} is damaged and cannot be read ({error}); delete it.") from error
    return tensors


def _shapes(path: Path) -> list[tuple[str, tuple[torch.Size, torch.dtype]]]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    stored = FileSystemReader(path).read_metadata().state_dict_metadata
    return [(key, (about.size, about.properties.dtype)) for key, about in stored.items()]  # type: ignore[union-attr]


def _tensor_size(path: Path) -> int:
    return int(json.loads((path / STATE).read_text(encoding="utf-8"))["tensor_parallel"])


def name_of(key: str) -> str:
    """Return the weight that a tensor of a checkpoint belongs to."""
    kind, _, rest = key.partition(".")
    return rest if kind == "model" else rest.partition(".")[2]
