"""On a GPU, a decoder: packed windows = rows, compiled = eager."""

import pytest
import torch

from qkv.config import TrainConfig, preset
from qkv.data import Specials, Tokens, WindowItems, validation_batches
from qkv.model import Decoder
from qkv.training import build_loss

VOCABULARY, SPECIAL = 300, Specials(pad=0, bos=2, eos=3)


@pytest.fixture(scope="module", params=["gpt2-mini", "llama-mini"])
def model(request):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "d_model": 64, "n_heads": 4, "d_ff": 128, "max_length": 64}
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    model = Decoder(preset(request.param, **sizes, **no_dropout, n_decoder_layers=2))
    with torch.no_grad():  # larger scores, so that it matters which keys are seen
        for parameter in model.decoder.blocks.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)
    return model


def loss_of(model, batches, device, **settings):
    loss_sum = build_loss(model, TrainConfig(**settings), device, one_shape=True)
    with torch.no_grad():
        totals = [loss_sum(batch.to(device), 0.0).item() for batch in batches]
    return sum(totals) / sum(batch.n_labels for batch in batches)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_packed_compiled_windows_equal_eager_rows(model, device, precision):
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 50, (40,), generator=generator).tolist()
    documents = [torch.randint(4, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    tokens = Tokens.of(documents, SPECIAL)
    items = WindowItems(tokens, SPECIAL, 64, in_order=True)
    rows, packed = (list(validation_batches(items, 4 * 64, packed)) for packed in (False, True))
    model.to(device).eval()
    expected = loss_of(model, rows, device, precision="float32", compile="off")
    found = loss_of(model, packed, device, precision=precision, compile="on")
    assert found == pytest.approx(expected, abs=1e-3 if precision == "float32" else 3e-2)
