"""Weights in 4 bits and in 8: products in float64, stored small, the same after a save."""

import copy
import pickle
import weakref
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.config import DecodeConfig, TokenizerConfig
from qkv.convert import Tokenizers, convert
from qkv.errors import UserError
from qkv.model.quantized import Int4Linear, Int8Linear, QuantizedEmbedding, quantized_matrices
from qkv.model.quantized_matrix import Int4Matrix, Int8Matrix
from qkv.tasks import Encoder, LanguageModel, Translator
from qkv.text import train_tokenizer
from qkv.weights import read_tensors, write_tensors
from tests.model.tiny import tiny_model

KINDS = {Int4Linear: Int4Matrix, Int8Linear: Int8Matrix}
SHAPES = [(48, 32), (17, 96), (160, 64), (5, 320)]  # multiples of the kernel's 16 outputs and not


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_is_rounded_to_16_steps_of_each_group(shape):
    weight = torch.randn(shape) * torch.logspace(-3, 3, shape[0])[:, None]
    matrix = Int4Matrix.of(weight)
    assert matrix.shape == shape
    assert matrix.integers().min() == 0 and matrix.integers().max() == 15
    apart = (matrix.float() - weight).abs().unflatten(1, (-1, 32)).amax(2)
    # Half a step, and what rounding scale and offset to bfloat16 adds at the ends of the range.
    assert (apart <= 0.6 * matrix.scale.float() + 0.004 * matrix.offset.float().abs()).all()
    assert Int4Matrix.of(torch.zeros(4, 32)).float().abs().max() < 1e-30


def test_two_integers_stand_in_a_byte_the_even_column_in_the_lower_half():
    integers = torch.arange(64).view(2, 32) % 16
    matrix = Int4Matrix.packed(integers, torch.full((2, 1), 0.5), torch.tensor([[0.0], [1.0]]))
    assert matrix.values[0, :3].tolist() == [0x10, 0x32, 0x54]
    assert matrix.integers().equal(integers.to(torch.uint8))
    assert matrix.float()[:, :2].tolist() == [[-4.0, -3.5], [-3.0, -2.5]]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_the_rounded_matrix(shape, bias):
    matrix = Int4Matrix.of(torch.randn(shape))
    added = torch.nn.Parameter(torch.randn(shape[0])) if bias else None
    layer, x = Int4Linear(matrix, added), torch.randn(3, 5, shape[1])
    exact = F.linear(
        x.double(), matrix.float(torch.float64), None if added is None else added.double()
    )
    # A CPU's kernel rounds inputs and outputs to the 8 bits of bfloat16.
    room = 2.0**-8 * F.linear(x.double().abs(), matrix.float(torch.float64).abs()) + 1e-6
    assert ((layer(x) - exact).abs() <= room).all()
    assert (layer(x) - exact).norm() <= 0.005 * exact.norm()
    rows = x.flatten(0, 1)
    assert layer(rows).equal(torch.cat([layer(row[None]) for row in rows]))


@pytest.mark.parametrize("linear", KINDS)
def test_a_layer_holds_one_copy_of_its_integers(linear):
    matrix = KINDS[linear].of(torch.randn(40, 64))
    expected, values = copy.deepcopy(matrix), weakref.ref(matrix.values)
    layer, table = linear(matrix), QuantizedEmbedding(matrix)
    x = torch.randn(3, 64)
    assert copy.deepcopy(layer)(x).equal(layer(x))
    for module in (layer, table, layer.double(), table.double()):
        for name, tensor in expected.tensors("weight").items():
            assert module.matrix.tensors("weight")[name].equal(tensor)
    assert table(torch.tensor([[3, 1]])).equal(expected.float(torch.float64)[None, [3, 1]])
    del matrix, module, table
    assert values() is None or layer.matrix.values is values()


@torch.inference_mode()
def test_layers_are_copied_and_sent_to_another_process():
    weight, x = torch.randn(24, 64), torch.randn(3, 64)
    layers = [Int8Linear(Int8Matrix.of(weight)), Int4Linear(Int4Matrix.of(weight))]
    for layer, copied in zip(layers, pickle.loads(pickle.dumps(layers)), strict=True):
        assert copied(x).equal(layer(x))
    process = get_context("spawn").Process(target=repr, args=(layers,))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("linear", KINDS)
def test_without_a_kernel_as_on_a_gpu_a_layer_compiles_whole(linear, monkeypatch):
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    matrix = KINDS[linear].of(torch.randn(40, 64))
    layer, table = linear(matrix, torch.nn.Parameter(torch.randn(40))), QuantizedEmbedding(matrix)
    tokens = torch.tensor([[3, 1]])

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(tokens):
        return layer(table(tokens))

    expected = F.linear(matrix.float()[tokens], matrix.float(), layer.bias)
    torch.testing.assert_close(compiled(tokens), expected, rtol=1e-5, atol=1e-4)
    x = torch.randn(2, 64, dtype=torch.float64)
    exact = F.linear(x, matrix.float(torch.float64), layer.bias.double())
    torch.testing.assert_close(layer(x), exact)


# Models


def vocabulary():
    texts = [
        f"the {a} {b} sees a {c}" for a in "xyz" for b in ("cat", "dog") for c in ("hat", "mat")
    ]
    return train_tokenizer(texts, TokenizerConfig(vocab_size=280))


def made(family, **differences):
    tokenizer = vocabulary()
    sizes = {"vocab_size": len(tokenizer), "d_model": 32, "d_ff": 64, "n_heads": 2}
    model = tiny_model(family=family, **(sizes | differences)).float()
    if family == "decoder":
        return LanguageModel(model, tokenizer, DecodeConfig(beams=1, max_length=8))
    if family == "encoder":
        return Encoder(model, tokenizer)
    return Translator(model, Tokenizers(tokenizer, tokenizer), DecodeConfig(beams=2, max_length=8))


FAMILIES = {
    "decoder": {"gated": True, "activation": "silu", "positions": "rotary", "tie": "output"},
    "encoder": {"head": "masked", "activation": "gelu"},
    "encoder-decoder": {"tie": "all"},
}


@pytest.fixture(params=FAMILIES)
def folder(request, tmp_path):
    model = made(request.param, **FAMILIES[request.param])
    model.save(tmp_path / "floats")
    return tmp_path / "floats"


@pytest.mark.parametrize(
    ("dtype", "kind", "apart"), [("int4", Int4Matrix, 0.12), ("int8", Int8Matrix, 0.01)]
)
def test_every_family_is_stored_small_and_comes_back(folder, tmp_path, dtype, kind, apart):
    plain, small = qkv.load(folder, "cpu"), convert(folder, tmp_path / dtype, dtype=dtype)
    rounded, again = qkv.load(folder, "cpu", dtype), qkv.load(small, "cpu")
    stored = read_tensors(small / "model.safetensors")
    for model in (rounded, again):
        matrices = quantized_matrices(model.model)
        assert any(isinstance(matrix, kind) for matrix in matrices.values())
        for name, matrix in matrices.items():
            tensors = matrix.tensors(name)
            assert all(tensor.equal(stored[name]) for name, tensor in tensors.items())
    again.save(tmp_path / "twice")
    twice = read_tensors(tmp_path / "twice" / "model.safetensors")
    assert twice.keys() == stored.keys()
    assert all(twice[name].equal(tensor) for name, tensor in stored.items())
    floats = dict(qkv.load(small, "cpu", "fp32").model.named_parameters())
    for name, expected in plain.model.named_parameters():
        assert floats[name].dtype == torch.float32
        assert (floats[name] - expected).norm() <= apart * expected.norm()
    assert len(qkv.load(small, "cpu", "int8").model.state_dict()) > 0


def test_4_bits_compute_what_their_floats_do(folder):
    rounded = qkv.load(folder, "cpu", "int4").model
    floats = qkv.load(folder, "cpu").model
    with torch.no_grad():
        parameters = dict(floats.named_parameters())
        for name, matrix in quantized_matrices(rounded).items():
            parameters[name].copy_(matrix.float())
    tokens = torch.randint(5, 40, (3, 7))
    inputs = (tokens, tokens) if rounded.config.family == "encoder-decoder" else (tokens,)
    with torch.inference_mode():
        expected, found = floats.double()(*inputs), rounded(*inputs)
    assert (found - expected).norm() <= 0.03 * expected.norm()


def test_a_folder_in_4_bits_may_become_8(tmp_path):
    made("decoder").save(tmp_path / "floats")
    small = convert(tmp_path / "floats", tmp_path / "int4", dtype="int4")
    wider = quantized_matrices(qkv.load(small, "cpu", "int8").model)
    narrow = quantized_matrices(qkv.load(small, "cpu").model)
    for name, matrix in wider.items():
        assert isinstance(matrix, Int8Matrix)
        assert (matrix.float() - narrow[name].float()).abs().max() <= matrix.scale.max()


def test_a_matrix_without_whole_groups_gets_8_bits(tmp_path):
    made("decoder", d_ff=24).save(tmp_path / "floats")
    small = convert(tmp_path / "floats", tmp_path / "int4", dtype="int4")
    kinds = {name: x.dtype for name, x in read_tensors(small / "model.safetensors").items()}
    assert kinds["decoder.blocks.0.feed_forward.outer.weight"] == torch.int8  # 24 inputs
    assert kinds["decoder.blocks.0.feed_forward.inner.weight"] == torch.uint8
    assert qkv.load(small, "cpu").generate("the", max_length=4) is not None


@pytest.mark.parametrize(
    ("dtype", "suffix"), [("int4", "_scale"), ("int4", "_offset"), ("int8", "_scale")]
)
def test_integers_without_scales_that_fit_are_refused(dtype, suffix, tmp_path):
    made("decoder").save(tmp_path / "floats")
    small = convert(tmp_path / "floats", tmp_path / "small", dtype=dtype)
    path = small / "model.safetensors"
    whole = read_tensors(path)
    name = next(name for name in whole if name.endswith(suffix) and "inner" in name)
    for changed in (None, whole[name][..., :0], whole[name][:-1]):
        tensors = {**whole, name: changed} if changed is not None else dict(whole)
        if changed is None:
            del tensors[name]
        write_tensors(path, tensors, {})
        with pytest.raises(UserError, match=name.removesuffix(suffix)):
            qkv.load(small, "cpu")


# In 8 bits

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
