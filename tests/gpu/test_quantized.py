"""On a GPU, quantised layers multiply as their floats do, plainly, captured and compiled."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from qkv.config import preset
from qkv.model import Decoder
from qkv.model.quantized import Int4Linear, Int8Linear, quantize, quantized_matrices
from qkv.model.quantized_matrix import Int4Matrix, Int8Matrix


@pytest.mark.parametrize(("linear", "kind"), [(Int8Linear, Int8Matrix), (Int4Linear, Int4Matrix)])
@torch.inference_mode()
def test_a_product(device, linear, kind):
    matrix = kind.of(torch.randn(96, 64))
    layer = linear(matrix.to(device), torch.nn.Parameter(torch.randn(96, device=device)))
    x = torch.randn(3, 5, 64, device=device, dtype=torch.bfloat16)
    exact = F.linear(x.double().cpu(), matrix.float(torch.float64), layer.bias.double().cpu())
    for multiply in (layer, torch.compile(layer, fullgraph=True)):
        assert (multiply(x).double().cpu() - exact).norm() <= 0.02 * exact.norm()
    moved = linear(matrix).to(device)
    for name, tensor in matrix.tensors("weight").items():
        assert moved.matrix.tensors("weight")[name].cpu().equal(tensor)
        assert moved.to("cpu").matrix.tensors("weight")[name].equal(tensor)
        moved = moved.to(device)


@pytest.mark.parametrize("kind", [Int8Matrix, Int4Matrix])
@torch.inference_mode()
def test_a_model_is_captured(device, kind):
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "d_model": 64, "n_heads": 4, "d_ff": 128, "max_length": 32}
    floats = Decoder(preset("llama-mini", **sizes, n_decoder_layers=2)).eval()
    weights = dict(floats.named_parameters())
    model = Decoder(floats.config).eval()
    model.load_state_dict(floats.state_dict())
    quantize(model, lambda name: kind.of(weights[name].detach()), device)
    model.to(device, torch.bfloat16)
    for name, matrix in quantized_matrices(model).items():
        weights[name].copy_(matrix.float())
    tokens = torch.randint(96, (2, 8), device=device)
    expected = floats.double()(tokens.cpu())
    model(tokens)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model(tokens)
    graph.replay()
    assert (captured.double().cpu() - expected).norm() <= 0.05 * expected.norm()


@pytest.mark.parametrize(
    ("n_outputs", "size"), [(96, 64), (97, 576), (50_257, 768), (6, 2048), (64, 8192), (33, 5000)]
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
@torch.inference_mode()
def test_products_of_one_row_in_a_compiled_step(device, n_outputs, size, dtype):
    from qkv.decode.row_products import RowProducts  # needs a GPU's compiler

    torch.compiler.reset()
    matrix = 20 * torch.randn(n_outputs, size, device=device)
    weight = matrix.to(dtype)
    scale = torch.rand(n_outputs, device=device)
    linear = Int8Linear(Int8Matrix(weight, scale)) if dtype == torch.int8 else None

    def product(x):
        return F.linear(x, weight) if linear is None else linear(x)

    options = {"post_grad_custom_pre_pass": RowProducts()}
    compiled = torch.compile(product, fullgraph=True, dynamic=False, options=options)
    exact_weight = weight.double() * (1 if linear is None else scale.double()[:, None])
    for n_rows in (1, 3):
        x = torch.randn(n_rows, 1, size, device=device)
        x = x if dtype == torch.float32 else x.bfloat16()
        exact = x.double() @ exact_weight.t()
        assert (compiled(x).double() - exact).norm() <= 0.01 * exact.norm()


@pytest.mark.parametrize(("width", "inner"), [(64, 96), (576, 33), (2048, 8192)])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
@torch.inference_mode()
def test_what_stands_around_the_products_of_one_row(device, width, inner, dtype):
    """The norm, the gate and the sum with the residual stream are computed with the products."""
    from qkv.decode.row_products import RowProducts  # needs a GPU's compiler

    torch.compiler.reset()
    floats = torch.bfloat16 if dtype == torch.int8 else dtype
    norm = torch.nn.RMSNorm(width, eps=1e-5, device=device, dtype=floats)
    norm.weight.copy_(torch.rand(width))
    both, outer = torch.randn(2 * inner, width), torch.randn(width, inner) / 10
    if dtype == torch.int8:
        quantized = [Int8Matrix.of(weight) for weight in (both, outer)]
        both, outer = (matrix.float() for matrix in quantized)
        into, out = (Int8Linear(matrix.to(device)) for matrix in quantized)
    else:
        both, outer = both.to(dtype), outer.to(dtype)
        into, out = (partial(F.linear, weight=weight.to(device)) for weight in (both, outer))

    def block(x):
        gate, hidden = into(norm(x)).chunk(2, dim=-1)
        return x + out(F.silu(gate) * hidden)

    options = {"post_grad_custom_pre_pass": RowProducts()}
    compiled = torch.compile(block, fullgraph=True, dynamic=False, options=options)
    x = 20 * torch.randn(1, 1, width, device=device, dtype=floats)
    exact = x.double().cpu()
    normed = F.rms_norm(exact, (width,), norm.weight.double().cpu(), 1e-5)
    gate, hidden = (normed @ both.double().t()).chunk(2, dim=-1)
    exact = exact + (F.silu(gate) * hidden) @ outer.double().t()
    assert (compiled(x).double().cpu() - exact).norm() <= 0.01 * exact.norm()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        compiled(x)
    kernels = [event.key for event in profiled.key_averages() if event.device_time_total]
    assert len(kernels) == 1 and "multiply" in kernels[0]
