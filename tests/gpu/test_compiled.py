"""On a GPU: packed = padded, compiled = eager, fast = equation, captured steps = plain ones."""

import numpy as np
import pytest
import torch

from qkv.config import TrainConfig, preset
from qkv.data import PairItems, Ragged, Specials
from qkv.model import EncoderDecoder, Layout, equation, use_path
from qkv.training import build_loss

VOCABULARY, SPECIAL = 500, Specials(pad=0, bos=2, eos=3)


@pytest.fixture(scope="module")
def model(device):
    torch.manual_seed(0)
    config = preset("transformer-tiny", vocab_size=VOCABULARY, dropout=0.0, max_length=256)
    model = EncoderDecoder(config).to(device)
    with torch.no_grad():  # larger scores, so that it matters which keys are seen
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(2)
    return model


def random_pairs(seed, n_pairs=60):
    rng = np.random.default_rng(seed)
    sides = [
        Ragged.of([rng.integers(4, VOCABULARY, size) for size in rng.integers(3, 40, n_pairs)])
        for _ in range(2)
    ]
    return PairItems(*sides, SPECIAL)


def batches(seed, device):
    pairs = random_pairs(seed)
    everything = np.arange(len(pairs))
    packed = pairs.batch(everything, shape=pairs.packed_shape(2048))
    return packed.to(device), pairs.batch(everything).to(device)


def mean_loss_and_gradient(model, batch, device, **settings):
    loss_sum = build_loss(model, TrainConfig(**settings), device, settings["packing"] == "on")
    model.zero_grad()
    loss = loss_sum(batch, 0.1) / batch.n_labels
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    return loss.item(), gradient.clone()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_compiled_packed_step_equals_eager_padded_one(model, device, precision):
    torch._dynamo.reset()
    exact = {"precision": "float32", "compile": "off", "packing": "off"}
    packed_settings = {"precision": precision, "compile": "on", "packing": "on"}
    loose = precision == "bfloat16"
    for seed in range(3):
        packed, padded = batches(seed, device)
        loss, gradient = mean_loss_and_gradient(model, packed, device, **packed_settings)
        expected, expected_gradient = mean_loss_and_gradient(model, padded, device, **exact)
        assert loss == pytest.approx(expected, abs=1e-2 if loose else 1e-4)
        difference = (gradient - expected_gradient).norm() / expected_gradient.norm()
        assert difference < (0.1 if loose else 1e-3)


def test_fused_kernels_equal_the_equation_in_bfloat16(model, device):
    source = torch.randint(4, VOCABULARY, (6, 20), device=device)
    target = torch.randint(4, VOCABULARY, (6, 15), device=device)
    lengths = torch.tensor([20, 3, 0, 12, 1, 7], device=device)  # the third sees nothing
    half = EncoderDecoder(model.config).to(device, torch.bfloat16).eval()
    half.load_state_dict(model.state_dict())
    with torch.no_grad():
        fast = half(source, target, Layout(lengths=lengths))
        with use_path(half, equation):
            exact = half(source, target, Layout(lengths=lengths))
    assert not fast.isnan().any()
    assert (fast - exact).float().abs().max() < 0.05 * exact.float().abs().max()
