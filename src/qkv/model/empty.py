"""Models without weights: their names and shapes, before any memory is spent on them."""

from __future__ import annotations

import os

import torch

from qkv.config import ModelConfig
from qkv.errors import UserError
from qkv.model.families import Model, build_model
from qkv.model.schemes import build_positions
from qkv.model.stack import Stack


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of each weight that such a model has."""
    return {name: tuple(one.shape) for name, one in _shape(config).named_parameters()}


def empty_model(config: ModelConfig) -> Model:
    """A model whose weights are to be filled in; only what needs no weights is there already."""
    model = _shape(config)
    _check_memory(model)
    for module in model.modules():
        if isinstance(module, Stack):
            module.positions = build_positions(config, module.causal)  # with its fixed tables
    return model


def _shape(config: ModelConfig) -> Model:
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
    """Refuse a model that this machine could never hold, before it tries to."""
    tensors = [*model.parameters(), *model.buffers()]
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UserError(
            f"The config asks for a model of {needed / 1e9:,.0f} GB, but this machine has "
            f"{there / 1e9:,.0f} GB of memory; check the config, or take a smaller model."
        )
