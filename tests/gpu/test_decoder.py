"""On a GPU, a decoder: packed windows = rows, compiled = eager, captured prompts = plain ones."""

import pytest
import torch

from qkv.config import DecodeConfig, TrainConfig, preset
from qkv.data import Specials, Tokens, WindowItems, validation_batches
from qkv.decode import Graphs, Remembered, complete, stream
from qkv.model import Decoder
from qkv.training import build_loss

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
VOCABULARY, SPECIAL = 300, Specials(pad=0, bos=2, eos=3)
PROMPTS = [[5, 6, 7, 8, 9], [11], [12, 13, 14, 15, 16, 17, 18, 19, 20], [21, 22]]


@pytest.fixture(scope="module")
def device():
    return torch.device("cuda", 0)


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


@pytest.mark.parametrize("beams", [1, 3])
def test_captured_prompts_of_different_lengths_equal_plain_ones(model, device, beams):
    config = DecodeConfig(beams=beams, max_length=20)
    expected = complete(model.cpu().eval(), PROMPTS, config)
    graphs = Graphs()
    for _ in range(2):
        found = complete(model.to(device), PROMPTS, config, graphs=graphs)
        assert [one[0].tokens for one in found] == [one[0].tokens for one in expected]
    assert len(graphs) == 1


def test_a_stream_remembers_on_the_gpu(model, device):
    config = DecodeConfig(beams=1, max_length=10)
    model.to(device).eval()
    remembered, graphs = Remembered(), Graphs()
    first = list(stream(model, PROMPTS[0], config, graphs=graphs, remembered=remembered))
    longer = [*PROMPTS[0], *first, 30]
    again = list(stream(model, longer, config, graphs=graphs, remembered=remembered))
    assert again == complete(model, [longer], config)[0][0].tokens
    assert remembered.n_read <= len(PROMPTS[0]) - 1 + 2
