"""On a GPU, recorded training steps: the losses and weights of plain ones, dropout included."""

import numpy as np
import pytest
import torch

from qkv.config import TrainConfig, preset
from qkv.data import PairItems, Ragged, Specials, Stream, Tokens, WindowItems
from qkv.model import Decoder, EncoderDecoder
from qkv.training import build_loss, consistent_next_token, make_layout, next_token
from qkv.training.distribution import ALONE

VOCABULARY, SPECIAL = 300, Specials(pad=0, bos=2, eos=3)
SMALL = {"vocab_size": VOCABULARY, "d_model": 64, "n_heads": 2, "d_ff": 128, "max_length": 64}
STEPS = 12


def pairs():
    rng = np.random.default_rng(0)
    sides = [
        Ragged.of([rng.integers(4, VOCABULARY, size) for size in rng.integers(3, 40, 400)])
        for _ in range(2)
    ]
    return PairItems(*sides, SPECIAL)


def windows():
    rng = np.random.default_rng(0)
    documents = [rng.integers(4, VOCABULARY, size).tolist() for size in rng.integers(5, 90, 300)]
    return WindowItems(Tokens.of(documents, SPECIAL), SPECIAL, 64)


KINDS = {
    "pairs": (EncoderDecoder, "transformer-tiny", pairs, next_token),
    "R-Drop": (EncoderDecoder, "transformer-tiny", pairs, consistent_next_token(2.0)),
    "windows": (Decoder, "llama-mini", windows, next_token),
    "waiting": (Decoder, "llama-mini", windows, lambda *x: next_token(*x) * waits_for_the_host()),
}


def waits_for_the_host():
    """1, in a way that cannot be recorded."""
    return torch.ones((), device="cuda").item()


def trained(name, precision, recorded):
    """Losses of some steps and the weights after them."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    family, size, items, objective = KINDS[name]
    model = family(preset(size, **SMALL, dropout=0.1)).to(device).train()
    config = TrainConfig(precision=precision, lr=1e-3)

    def loss_of(model, config):
        return build_loss(model, config, device, True, objective)

    layout = make_layout(model, loss_of, config, ALONE, one_shape=recorded)
    optimizer = layout.build_optimizer(config)
    steps, losses = Stream(items(), 1024, packed=True, seed=3).steps_from(0), []
    for number in range(STEPS):
        torch.manual_seed(number)
        batches = [batch.to(device) for batch in next(steps)]
        losses.append(layout.accumulate(batches, 0.1))
        layout.update(optimizer, 1.0)
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return torch.stack(losses).cpu(), weights.cpu()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:steps go on unrecorded")
def test_recorded_steps_equal_plain_ones(name, precision):
    losses, weights = trained(name, precision, recorded=True)
    expected_losses, expected_weights = trained(name, precision, recorded=False)
    tolerance = 1e-4 if precision == "float32" else 2e-2
    torch.testing.assert_close(losses, expected_losses, rtol=tolerance, atol=tolerance)
    difference = (weights - expected_weights).norm() / expected_weights.norm()
    assert difference < (1e-3 if precision == "float32" else 3e-2)
    assert losses.unique().numel() == STEPS
