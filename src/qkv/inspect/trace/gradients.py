"""Gradients of the loss with respect to quantities and weights, many in one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect.trace.hooks import run
from qkv.inspect.trace.inputs import Inputs
from qkv.inspect.trace.notation import Quantity
from qkv.inspect.trace.outputs import loss, loss_of_log_probabilities, loss_of_probabilities
from qkv.inspect.trace.taps import Ask, Probe
from qkv.inspect.trace.weights import Weight
from qkv.model import evaluating

if TYPE_CHECKING:
    from qkv.inspect.trace.trace import Trace

AFTER_LOGITS: dict[str, Callable[[Tensor, Tensor, Inputs], Tensor]] = {
    "probabilities": loss_of_probabilities,
    "target.log_probabilities": loss_of_log_probabilities,
}


def lack_of_gradient(trace: Trace, quantity: Quantity) -> str | None:
    """Say why the loss has no gradient by a quantity; None if it has."""
    key = quantity.key
    if trace.inputs.labels is None or "loss" not in trace.quantities:
        return f"There is no loss to differentiate by {key}; trace with a target that gives labels."
    if isinstance(quantity, Weight):
        if quantity.has_gradient:
            return None
        return (
            f"{key} is stored as integers, by which nothing can be differentiated; load the model "
            "with dtype='fp32'."
        )
    if quantity.make is not None and key not in (*AFTER_LOGITS, "loss"):
        return f"The loss has no gradient by {key}, which is given and not computed."
    return None


def gradients(trace: Trace, keys: Sequence[str]) -> dict[str, Tensor]:
    """Differentiate the loss by quantities and weights, by one forward and one backward pass."""
    quantities = [trace.quantities[key] for key in keys]
    for quantity in quantities:
        if lack := lack_of_gradient(trace, quantity):
            raise UserError(lack)
    weights = [quantity for quantity in quantities if isinstance(quantity, Weight)]
    own = {quantity.key for quantity in quantities if quantity.make is None}
    with torch.inference_mode(False), torch.enable_grad(), evaluating(trace.model):
        inputs = _outside_inference_mode(trace.inputs)
        probe = Probe([Ask("logits")], trace.edits, by=own)
        with _differentiable(weights) as parameters:
            run(trace.model, inputs, probe)
            logits = probe.values[Ask("logits")]
            found = _by_nodes(probe, logits, inputs, [*parameters.values()])
            by_parameter = dict(zip(parameters, found[len(probe.nodes) :], strict=True))
        values = dict(zip(probe.nodes, found, strict=False))
        values |= {weight.key: _part(weight, by_parameter) for weight in weights}
        for key in {*keys} & {*AFTER_LOGITS, "loss"}:
            values[key] = _after_logits(trace, key, logits.detach(), inputs)
    return {key: values[key].detach() for key in keys}


def _by_nodes(
    probe: Probe, logits: Tensor, inputs: Inputs, parameters: list[Tensor]
) -> list[Tensor]:
    """Differentiate the loss by the tapped quantities and by parameters; 0 where it reads none."""
    assert inputs.labels is not None
    by = [*probe.nodes.values(), *parameters]
    if not by:
        return []
    found = torch.autograd.grad(loss(logits, inputs.labels, inputs), by, allow_unused=True)
    return [
        torch.zeros_like(x) if gradient is None else gradient
        for x, gradient in zip(by, found, strict=True)
    ]


def _after_logits(trace: Trace, key: str, logits: Tensor, inputs: Inputs) -> Tensor:
    """Differentiate by what is computed of the logits beside the loss, as the loss reads it."""
    if key == "loss":
        return torch.ones((), dtype=logits.dtype, device=logits.device)
    make = trace.quantities[key].make
    assert make is not None and inputs.labels is not None
    leaf = make(logits).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(AFTER_LOGITS[key](leaf, inputs.labels, inputs), leaf)
    return gradient


@contextmanager
def _differentiable(weights: Sequence[Weight]) -> Iterator[dict[int, Tensor]]:
    """Let parameters that are frozen take part in the pass; yields them by identity."""
    parameters = {id(x): x for weight in weights if (x := weight.parameter()) is not None}
    frozen = [x for x in parameters.values() if not x.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_()
    try:
        yield parameters
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _part(weight: Weight, by_parameter: dict[int, Tensor]) -> Tensor:
    return weight.part(by_parameter[id(weight.parameter())]).clone()


def _outside_inference_mode(inputs: Inputs) -> Inputs:
    """Copy the tensors, since those made in inference mode cannot take part in gradients."""

    def copy(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.clone()

    sides: dict[str, Any] = {
        name: replace(
            side,
            tokens=side.tokens.clone(),
            layout=replace(side.layout, lengths=copy(side.layout.lengths)),
        )
        for name, side in inputs.sides.items()
    }
    return replace(inputs, **sides, segments=copy(inputs.segments), labels=copy(inputs.labels))
