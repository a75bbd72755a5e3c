"""Models without weights: names and shapes of weights without their memory."""

from __future__ import annotations

import os

import torch

from qkv.config import ModelConfig
from qkv.errors import UserError
from qkv.model.families import Model, build_model
from qkv.model.positions import build_positions
from qkv.model.stack import Stack


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """List the name and shape of each weight of a model."""
    return {name: tuple(weight.shape) for name, weight in _on_meta(config).named_parameters()}


def empty_model(config: ModelConfig) -> Model:
    """Build a model on the meta device, with only its fixed tables in memory."""
    model = _on_meta(config)
    _check_memory(model)
    for module in model.modules():
        if isinstance(module, Stack):
            module.positions = build_positions(config, module.causal)
    return model


def _on_meta(config: ModelConfig) -> Model:
    try:
        with torch.device("meta"):
            return build_model(config)
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise UserError(
            "The config asks for a matrix with more numbers than can be counted; check the config."
        ) from error


def _check_memory(model: Model) -> None:
    """Raise an error for a model that is larger than this machine's memory."""
    tensors = [*model.parameters(), *model.buffers()]
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise UserError(
            f"The config asks for a model of {needed / 1e9:,.0f} GB, but this machine has "
            f"{memory / 1e9:,.0f} GB of memory; check the config, or take a smaller model."
        )
