"""Count what autograd keeps, for plans to be compared with."""

from __future__ import annotations

import torch
from torch import nn

from qkv.config import ModelConfig, Recipe, recipe_from
from qkv.model import Model, build_model, use_path
from qkv.model.attention import equation
from qkv.plan.parameters import product_weights
from qkv.plan.passes import BatchSize, Numerics, pass_cost
from qkv.run.job import objective_of
from qkv.run.measured_steps import random_batch
from qkv.training import build_loss

CPU = torch.device("cpu")


def saved_bytes(recipe: Recipe, config: ModelConfig, size: BatchSize, precision: str) -> int:
    """Bytes that autograd saves in one pass, every storage once, weights and tables aside."""
    model, loss = _loss(recipe, config, precision)
    own = {
        tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]
    }
    kept: dict[int, torch.Tensor] = {}  # alive, so that no address comes twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            kept.setdefault(address, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss(random_batch(recipe, config, size), 0.1)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def planned_bytes(config: ModelConfig, size: BatchSize, precision: str) -> float:
    """What a plan says of the same, with the copies of weights that bfloat16 products keep."""
    half = precision == "bfloat16"
    cost = pass_cost(config, size, Numerics(half=half))
    return cost.saved() + 2 * product_weights(config) * half


def counted_flops(recipe: Recipe, config: ModelConfig, size: BatchSize) -> int:
    """Operations of one pass forward and backward, as torch counts them on the equation path."""
    from torch.utils.flop_counter import FlopCounterMode

    model, loss = _loss(recipe, config, "float32")
    with use_path(model, equation), FlopCounterMode(display=False) as counter:
        loss(random_batch(recipe, config, size), 0.1).backward()
    return counter.get_total_flops()


def _loss(recipe: Recipe, config: ModelConfig, precision: str):  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model: Model = build_model(config)
    assert isinstance(model, nn.Module)
    model.train()
    train = recipe_from({"task": recipe.task, "train": {"precision": precision}}).train
    return model, build_loss(model, train, CPU, objective=objective_of(recipe))
