"""Weights in 8 bits: products and conversions; whole models are tested with those in 4 bits."""

from pathlib import Path

import pytest
import torch

import qkv
from qkv.convert import convert
from qkv.errors import UserError
from qkv.model.quantized import Int8Linear
from qkv.model.quantized_matrix import Int8Matrix
from qkv.weights import read_tensors

OLD = Path(__file__).parent / "folders_without_format"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_product_is_that_of_the_rounded_matrices(bias, nonnegative):
    weight, x = torch.randn(48, 32), torch.randn(3, 5, 32)
    x = x.relu() if nonnegative else x
    matrix = Int8Matrix.of(weight)
    assert matrix.values.abs().amax(dim=1).eq(127).all()
    assert (matrix.float() - weight).abs().max() <= matrix.scale.max() / 2 + 1e-7
    added = torch.nn.Parameter(torch.randn(48)) if bias else None
    layer = Int8Linear(matrix, added, nonnegative)
    expected = torch.nn.functional.linear(x, matrix.float(), added)
    # The input is rounded to 7 bits or more of each row's largest value.
    room = x.abs().amax(-1, keepdim=True) / 126 * matrix.float().abs().sum(1)
    assert ((layer(x) - expected).abs() <= room + 1e-5).all()
    assert (layer(x) - expected).norm() <= 0.02 * expected.norm()
    assert layer.weight.equal(matrix.float())


@pytest.mark.parametrize("bias", [False, True])
def test_a_precise_product_keeps_what_stands_beside_an_outlier(bias):
    matrix, x = Int8Matrix.of(torch.randn(48, 64)), torch.randn(3, 5, 64)
    x[..., 7] *= 300
    added = torch.nn.Parameter(torch.randn(48)) if bias else None
    exact = torch.nn.functional.linear(x, matrix.float(), added)
    others = torch.nn.functional.linear(x[..., :7], matrix.float()[:, :7])
    plain, precise = (
        (Int8Linear(matrix, added, precise=wanted)(x) - exact).norm() for wanted in (False, True)
    )
    assert precise <= 0.03 * plain
    assert precise <= 0.05 * others.norm()


@pytest.mark.parametrize("precise", [False, True])
def test_a_row_does_not_depend_on_its_neighbours(precise):
    bias = torch.nn.Parameter(torch.randn(64))
    layer = Int8Linear(Int8Matrix.of(torch.randn(64, 32)), bias, precise=precise)
    rows = torch.randn(17, 32) * torch.logspace(-3, 3, 17)[:, None]
    assert layer(rows).equal(torch.cat([layer(row[None]) for row in rows]))
    assert layer(torch.zeros(2, 32)).equal(layer.bias.expand(2, -1))


def test_a_folder_in_8_bits_is_converted_as_it_is(tmp_path):
    first = convert(OLD / "decoder", tmp_path / "first", dtype="int8")
    again, floats = tmp_path / "again", tmp_path / "floats"
    convert(first, again)
    convert(first, floats, dtype="fp32")
    expected = read_tensors(first / "model.safetensors")
    found = read_tensors(again / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    whole = read_tensors(floats / "model.safetensors")
    assert {tensor.dtype for tensor in whole.values()} == {torch.float32}
    assert whole.keys() == {name for name in expected if not name.endswith("_scale")}


def test_an_unknown_dtype_and_another_format_are_refused(tmp_path):
    with pytest.raises(UserError, match="Unknown dtype 'int3'"):
        qkv.load(OLD / "decoder", dtype="int3")
    with pytest.raises(UserError, match="Unknown dtype 'int3'"):
        convert(OLD / "decoder", tmp_path / "x", dtype="int3")
    with pytest.raises(UserError, match="without one"):
        convert(OLD / "decoder", tmp_path / "x", "huggingface", "int8")
    assert not (tmp_path / "x").exists()


def test_a_model_in_8_bits_is_traced_and_verified(tmp_path):
    folder = convert(OLD / "decoder", tmp_path / "int8", dtype="int8")
    plain, rounded = qkv.load(OLD / "decoder"), qkv.load(folder)
    for name in ("decoder.0.self_attention.weights", "logits"):
        expected, found = (model.trace("a cat")[name] for model in (plain, rounded))
        assert (found - expected).norm() <= 0.1 * expected.norm()
    assert all(proof.passed is not False for proof in qkv.verify(folder, "cpu"))
