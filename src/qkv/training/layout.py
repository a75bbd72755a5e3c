"""How a model lies on its workers: whole on one, a copy on each, or a part on each."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.config import TrainConfig
from qkv.data.batch import Batch
from qkv.device import is_on
from qkv.errors import UserError
from qkv.model import Model, Stack
from qkv.training.checkpoint import (
    TrainState,
    copied_checkpoint,
    fill,
    load_checkpoint,
    read_state,
    trained_weights,
)
from qkv.training.distribution import ALONE, Distribution
from qkv.training.int8_adamw import Int8AdamW
from qkv.training.optimizer import adamw, build_optimizer, freeze
from qkv.training.recorded import RecordedLoss
from qkv.training.sharded_checkpoint import copied_parts, name_of, read_parts, read_whole
from qkv.training.step import LossSum, accumulate, update
from qkv.training.tensor_parallel import check_tensor_parallel, row_orders, split_matrices
from qkv.weights import StoredTensors, check_fit

BuildLoss = Callable[[Model, TrainConfig], LossSum]


class Layout:
    """A whole model in one process."""

    workers: Distribution = ALONE

    def __init__(
        self, model: Model, loss_sum: LossSum, recorded: RecordedLoss | None = None
    ) -> None:
        self.model, self.loss_sum, self.recorded = model, loss_sum, recorded

    def build_optimizer(self, config: TrainConfig) -> torch.optim.Optimizer:
        """Build the optimizer of this worker's weights."""
        optimizer = build_optimizer(self.model, config)
        if isinstance(optimizer, Int8AdamW) and config.moves_in_backward and self.workers is ALONE:
            optimizer.move_in_backward()
        return optimizer

    def accumulate(self, batches: Sequence[Batch], smoothing: float) -> Tensor:
        """Add up the gradients of a step's batches; return this worker's share of the mean loss."""
        if self.recorded is not None and len(batches) == 1:
            loss = self.recorded.backward(batches[0], smoothing)
            if loss is not None:
                return loss
        return accumulate(self.loss_sum, batches, smoothing)

    def update(self, optimizer: torch.optim.Optimizer, clip: float) -> None:
        """Clip the gradient's norm, update the weights, drop the gradient."""
        update(self.model, optimizer, clip)

    def collect(self) -> None:
        """Bring the weights of all workers into `model`, which is evaluated and kept."""

    def largest_weight(self) -> float:
        """Return the largest absolute value of all weights that are trained, or nan."""
        return _largest(list(trained_weights(self.model).values()))

    def copied(
        self, folder: Path, optimizer: torch.optim.Optimizer, state: TrainState
    ) -> Callable[[], None]:
        """Copy all that a checkpoint holds; return what writes it, while training may go on."""
        return copied_checkpoint(folder, self.model, optimizer, state)

    def load(self, path: Path, optimizer: torch.optim.Optimizer) -> TrainState:
        """Load a checkpoint of any layout; return its counters."""
        if not path.is_dir():
            return load_checkpoint(path, self.model, optimizer)
        fill(self.model, optimizer, read_whole(path, self.model), path)
        return read_state(path)


class Replicated(Layout):
    """A copy of the model on each worker; gradients are summed while they are computed (DDP)."""

    def __init__(self, model: Model, loss_sum: LossSum, workers: Distribution) -> None:
        super().__init__(model, loss_sum)
        self.workers = workers
        self.parallel: nn.parallel.DistributedDataParallel | None = None

    def accumulate(self, batches: Sequence[Batch], smoothing: float) -> Tensor:
        """Add up the gradients of all workers' batches, the last with communication."""
        if self.parallel is None:
            self.parallel = self._wrapped(batches[0], smoothing)
        parallel = self.parallel

        def syncing(last: bool) -> AbstractContextManager[Any]:
            return nullcontext() if last else parallel.no_sync()

        return accumulate(parallel, batches, smoothing, self.workers, syncing)

    def _wrapped(self, batch: Batch, smoothing: float) -> nn.parallel.DistributedDataParallel:
        """Wrap model and loss in DDP, which must know whether there are weights without gradient.

        Not every objective uses all parts: masked prediction needs no pooler.
        """
        device = next(self.model.parameters()).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.loss_sum(batch, smoothing).backward()
        unused = any(weight.grad is None for weight in trained_weights(self.model).values())
        self.model.zero_grad(set_to_none=True)
        parallel = nn.parallel.DistributedDataParallel
        renamed = "forward_sync_buffers" in inspect.signature(parallel).parameters
        constant: Any = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        module = _LossModule(self.model, self.loss_sum)
        return parallel(
            module, find_unused_parameters=unused, gradient_as_bucket_view=True, **constant
        )

    def copied(
        self, folder: Path, optimizer: torch.optim.Optimizer, state: TrainState
    ) -> Callable[[], None]:
        """Copy what the main worker has, which is the same on all."""
        if not self.workers.is_main:
            return lambda: None
        return super().copied(folder, optimizer, state)


class Sharded(Layout):
    """A part of the weights and of the optimizer's state on each worker.

    Matrices may be split among neighbours that compute together (tensor parallel); copies of a part
    are summed up (shard = "none") or cut further (shard = "full", FSDP2). The whole `model` is
    beside it, for validation and for the model folder.
    """

    def __init__(
        self, model: Model, build_loss: BuildLoss, config: TrainConfig, workers: Distribution
    ) -> None:
        _check(model, config, workers)
        self.workers, self.model = workers, model
        freeze(model, config.freeze)
        self.trained = copy.deepcopy(model)
        self.tensor_size = workers.tensor_size
        self.orders = row_orders(model, self.tensor_size)
        self.n_copies = 1 if config.shard == "full" else workers.data_size
        self.n_parts = workers.data_size // self.n_copies
        data_mesh, tensor_mesh, self.mesh = self._meshes(next(model.parameters()).device)
        self.split_dims = split_matrices(self.trained, tensor_mesh) if tensor_mesh else {}
        _shard(self.trained, data_mesh, compiled=config.compile == "on")
        # Communication between blocks is not compiled.
        self.loss_sum = build_loss(self.trained, replace(config, compile="off"))
        # The optimizer sees this worker's parts as plain tensors in the same memory: its update is
        # the same for each element, and needs no communication.
        self.weights: dict[str, Any] = {**trained_weights(self.trained)}
        self.parts = {name: nn.Parameter(p.to_local()) for name, p in self.weights.items()}

    def build_optimizer(self, config: TrainConfig) -> torch.optim.Optimizer:
        """Build the optimizer of this worker's part."""
        return adamw(self.parts.values(), config)

    def accumulate(self, batches: Sequence[Batch], smoothing: float) -> Tensor:
        """Add up the gradients of all workers' batches, the last with communication."""

        def syncing(last: bool) -> AbstractContextManager[Any]:
            self.trained.set_requires_gradient_sync(last)  # type: ignore[operator]
            return nullcontext()

        return accumulate(self.loss_sum, batches, smoothing, self.workers, syncing)

    def update(self, optimizer: torch.optim.Optimizer, clip: float) -> None:
        """Clip the norm of the whole gradient, update this worker's part, drop the gradient."""
        for name, weight in self.weights.items():
            grad = weight.grad
            self.parts[name].grad = None if grad is None else grad.to_local()
        if clip:
            self._clip(clip)
        optimizer.step()
        for name, weight in self.weights.items():
            self.parts[name].grad = weight.grad = None

    def _clip(self, clip: float) -> None:
        """Scale the gradient to the norm `clip` where it is larger, as torch does."""
        grads, squares = [], []
        for name, part in self.parts.items():
            if part.grad is not None:
                grads.append(part.grad)
                # So many workers have this element: all together they count it once.
                copies = self.n_copies * (1 if name in self.split_dims else self.tensor_size)
                squares.append(part.grad.square().sum() / copies)
        total = torch.stack(squares).sum()
        torch.distributed.all_reduce(total)
        torch._foreach_mul_(grads, (clip / (total.sqrt() + 1e-6)).clamp(max=1.0))

    def collect(self) -> None:
        """Gather the weights of all workers in the whole model."""
        whole = trained_weights(self.model)
        with torch.no_grad():
            for name, part in self.parts.items():
                full = self._as_shard(name, part.detach()).full_tensor()
                order = self.orders.get(name)
                whole[name].copy_(full if order is None else full[order.argsort()])

    def largest_weight(self) -> float:
        """Return the largest absolute value of all weights that are trained, or nan."""
        found = self.workers.gather(_largest(list(self.parts.values())))
        return math.nan if any(map(math.isnan, found)) else max(found)

    def copied(
        self, folder: Path, optimizer: torch.optim.Optimizer, state: TrainState
    ) -> Callable[[], None]:
        """Copy this worker's part; each worker must write its own for a checkpoint to be whole."""
        tensors: dict[str, Any] = {}
        for name, part in self.parts.items():
            tensors[f"model.{name}"] = self._as_shard(name, part.detach())
            for key, value in optimizer.state[part].items():
                tensors[f"optimizer.{key}.{name}"] = self._as_shard(name, torch.as_tensor(value))
        return copied_parts(folder, tensors, state, self.tensor_size, self.workers)

    def _as_shard(self, name: str, value: Tensor) -> Any:
        """Describe a tensor that is cut like the weight `name`; others are the same everywhere."""
        from torch.distributed.tensor import DTensor, Replicate, Shard

        weight = self.weights[name]
        if value.shape != self.parts[name].shape or not value.ndim:
            return value
        split = Shard(self.split_dims[name]) if name in self.split_dims else Replicate()
        return DTensor.from_local(
            value,
            self.mesh,
            [split, Replicate(), Shard(0)],
            run_check=False,
            shape=weight.shape,
            stride=weight.stride(),
        )

    def empty_shard(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Any:
        """Make room for a tensor that is cut like the weight `name`, or for a whole other one."""
        if shape != self.weights[name].shape:
            return torch.empty(shape, dtype=dtype)
        return self._as_shard(name, torch.empty_like(self.parts[name], dtype=dtype))

    def load(self, path: Path, optimizer: torch.optim.Optimizer) -> TrainState:
        """Load a checkpoint of any layout: each worker its part."""
        if path.is_dir():
            parts = read_parts(path, self)
        else:
            stored = StoredTensors(path)  # read one at a time
            shapes = {
                key.removeprefix("model."): torch.empty(shape, device="meta")
                for key, shape in stored.shapes.items()
                if key.startswith("model.")
            }
            check_fit(self.weights, shapes, path)
            parts = {key: self.own_part(name_of(key), stored[key]) for key in stored}
        with torch.no_grad():
            for key, value in parts.items():
                kind, _, rest = key.partition(".")
                if kind == "model":
                    self.parts[rest].copy_(value)
                    continue
                part = self.parts[name_of(key)]
                optimizer.state[part][rest.partition(".")[0]] = value.to(part.device)
        return read_state(path)

    def own_part(self, name: str, tensor: Tensor) -> Tensor:
        """Cut this worker's part out of a whole tensor of the weight `name`, or of its state."""
        if tensor.shape != self.weights[name].shape:
            return tensor
        if name in self.orders:
            tensor = tensor[self.orders[name]]
        split, _, part = self.mesh.get_coordinate()
        if name in self.split_dims:
            tensor = tensor.chunk(self.tensor_size, dim=self.split_dims[name])[split]
        parts = tensor.chunk(self.n_parts, dim=0)
        return parts[part].clone() if part < len(parts) else tensor[:0]

    def _meshes(self, device: torch.device) -> tuple[Any, Any, Any]:
        """Arrange the workers: for copies and parts, for matrices, and in the order of all cuts."""
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

        sizes = self.n_copies, self.n_parts, self.tensor_size
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("copies", "parts", "tensor"))
        data = mesh["parts"] if self.n_copies == 1 else mesh["copies", "parts"]
        # Matrices are split first, and what each worker has of them is cut into parts.
        ranks = torch.arange(self.workers.size).view(sizes).permute(2, 0, 1)
        # A list: torch 2.11 takes a tensor's strides for the mesh's, even where a size is 1.
        names = ("tensor", "copies", "parts")
        in_order = DeviceMesh(device.type, ranks.tolist(), mesh_dim_names=names)
        return data, mesh["tensor"] if self.tensor_size > 1 else None, in_order


def make_layout(
    model: Model,
    build_loss: BuildLoss,
    config: TrainConfig,
    workers: Distribution,
    one_shape: bool = False,
) -> Layout:
    """Lay a model out on its workers as the settings say.

    On a GPU, compiled steps of `one_shape` are recorded too.
    """
    device = next(model.parameters()).device
    if workers.size == 1:
        loss_sum, recorded = build_loss(model, config), None
        is_compiled = device.type == "cuda" and is_on(config.compile, device)
        # Weights that move within the backward pass, and blocks that are computed again there,
        # do what a recording cannot hold.
        plain = config.moves_in_backward or config.recompute
        if is_compiled and one_shape and not plain:
            recorded = RecordedLoss(loss_sum, model, device)
        return Layout(model, loss_sum, recorded)
    if is_on(config.compile, device):
        import torch._dynamo

        # Blocks are compiled one by one, and DDP's own optimisation would cut them at its buckets.
        torch._dynamo.config.optimize_ddp = False
    if config.shard == "none" and workers.tensor_size == 1:
        return Replicated(model, build_loss(model, config), workers)
    return Sharded(model, build_loss, config, workers)


class _LossModule(nn.Module):
    """The model and its loss in one forward pass, which DDP puts its hooks around."""

    def __init__(self, model: Model, loss_sum: LossSum) -> None:
        super().__init__()
        self.model, self.loss_sum = model, loss_sum

    def forward(self, batch: Batch, smoothing: float) -> Tensor:
        """Return the summed loss of a batch."""
        return self.loss_sum(batch, smoothing)


def _check(model: Model, config: TrainConfig, workers: Distribution) -> None:
    """Refuse what cannot be cut into parts."""
    setting = "train.tensor_parallel" if workers.tensor_size > 1 else "train.shard"
    if config.lora_rank:
        raise UserError(
            f"{setting}: LoRA trains few weights beside frozen ones, which are not cut into parts; "
            f"leave it out."
        )
    if config.optimizer == "muon":
        raise UserError(
            f"{setting}: optimizer = 'muon' needs whole matrices; leave one of the two out."
        )
    if config.optimizer_state == "int8":
        raise UserError(
            f"{setting}: optimizer_state = 'int8' has scales for blocks of whole weights; leave "
            f"one of the two out."
        )
    check_tensor_parallel(model, workers.tensor_size)


def _shard(model: Model, mesh: Any, compiled: bool) -> None:
    """Cut the weights of each block, and those of all the rest, into a part for each worker."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # Views that nobody writes to, and gathering in two steps, are nothing to warn people of.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        if len(stack.blocks) < len(stack.windows):
            continue  # one block for all layers: its weights stay with the rest
        for block in stack.blocks:
            if compiled:
                block.compile()
            cross = getattr(block, "cross_attention", None)
            if cross is not None:  # its keys and values are computed outside of the block
                fully_shard(cross, mesh=mesh)
                for method in ("remember", "look"):
                    register_fsdp_forward_method(cross, method)
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _largest(tensors: Sequence[Tensor]) -> float:
    found = [tensor.detach().abs().max() for tensor in tensors if tensor.numel()]
    return float(torch.stack(found).max()) if found else 0.0
