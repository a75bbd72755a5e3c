"""Proof that quantised weights are multiplied right: as the floats that they stand for are."""

from __future__ import annotations

import copy

import torch

from qkv.model import Model
from qkv.model.quantized import quantized_matrices
from qkv.proofs.model_under_test import Example, ModelUnderTest
from qkv.proofs.passes import alone
from qkv.proofs.proof import Measured

LIMIT = (
    0.3  # of the logits' norm; kernels for integers round inputs, wrong logits differ by 1 or more
)


def dequantized(tested: ModelUnderTest) -> Measured:
    """Compare the quantised model with one that has its matrices in floats."""
    assert tested.quantized is not None
    floats = _with_floats(tested, tested.quantized)
    outputs, expected = (
        torch.cat(
            [
                alone(model, _on(example, model)).flatten().double().cpu()
                for example in tested.examples
            ]
        )
        for model in (tested.quantized, floats)
    )
    return Measured(float((outputs - expected).norm() / expected.norm()), LIMIT)


def _with_floats(tested: ModelUnderTest, quantized: Model) -> Model:
    """Copy the model in floats, with the numbers that the integers stand for."""
    model = copy.deepcopy(tested.model)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, matrix in quantized_matrices(quantized).items():
            parameters[name].copy_(matrix.float())
    return model


def _on(example: Example, model: Model) -> Example:
    """Return an example whose pixels have the model's precision."""
    if example.pixels is None:
        return example
    weight = next(model.parameters())
    return Example(pixels=example.pixels.to(weight.device, weight.dtype))
