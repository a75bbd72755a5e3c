"""Proof that quantised weights are multiplied right: as the floats that they stand for are."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.model import Model
from qkv.model.quantized import quantized_matrices
from qkv.proofs.model_under_test import Example, ModelUnderTest
from qkv.proofs.passes import alone
from qkv.proofs.proof import Measured

# Of the logits' norm; kernels for integers round inputs, wrong logits differ by 1 or more
LIMIT = 0.3


def dequantized(tested: ModelUnderTest) -> Measured:
    """Compare the quantised model with one that has its matrices in floats."""
    assert tested.quantized is not None
    floats = _with_floats(tested, tested.quantized)
    outputs, expected = (_logits(model, tested.examples) for model in (tested.quantized, floats))
    return Measured(float((outputs - expected).norm() / expected.norm()), LIMIT)


def _with_floats(tested: ModelUnderTest, quantized: Model) -> Model:
    """Copy the model in floats, with the numbers that the integers stand for."""
    model = copy.deepcopy(tested.model)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, matrix in quantized_matrices(quantized).items():
            parameters[name].copy_(matrix.float())
    return model


def _logits(model: Model, examples: Sequence[Example]) -> Tensor:
    weight = next(model.parameters())
    logits = [alone(model, example.to(weight)).flatten() for example in examples]
    return torch.cat(logits).double().cpu()
