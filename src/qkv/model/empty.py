"""Models without weights: names and shapes of weights without their memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from qkv.config import ModelConfig
from qkv.device import memory_errors
from qkv.errors import UserError
from qkv.model.families import Model, build_model

CPU = torch.device("cpu")
FLOAT64 = 8  # bytes; tables of positions are computed in it


class _EmptyWeights(TorchFunctionMode):
    """Create weights on the meta device and leave them as they are.

    `torch.device("meta")` would do so for fixed tables too, whose arithmetic on that device imports
    torch's compiler: 1.5 s.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function in (torch.empty, torch.zeros):
            return function(*args, **kwargs | {"device": "meta"})
        if getattr(function, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of each weight that such a model has."""
    return dict(_parameter_shapes(config))


@lru_cache(maxsize=16)  # reading or writing a checkpoint asks for those of one config many times
def _parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in _shape(config).named_parameters()}


def empty_model(config: ModelConfig) -> Model:
    """A model whose weights are to be filled in; only what needs no weights is there already."""
    model = _shape(config)
    tensors = [*model.parameters(), *model.buffers()]
    _check_memory(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    return model


def _shape(config: ModelConfig) -> Model:
    _check_memory(FLOAT64 * config.n_positions * config.embedding_width)
    try:
        with memory_errors(CPU, "check the config, or take a smaller model"), _EmptyWeights():
            return build_model(config)
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise UserError(
            "The config asks for a matrix with more numbers than can be counted; check the config."
        ) from error


def _check_memory(needed: int) -> None:
    """Refuse a model that this machine could never hold, before it tries to."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise UserError(
            f"The config asks for a model of {needed / 1e9:,.0f} GB, but this machine has "
            f"{available / 1e9:,.0f} GB of memory; check the config, or take a smaller model."
        )
