"""T5 and BART on a GPU: one captured step serves all, with keys where the cache has them."""

import pytest
import torch

from qkv.config import DecodeConfig, preset
from qkv.decode import generate
from qkv.model import EncoderDecoder, Layout

SMALL = {"d_model": 32, "n_heads": 4, "d_ff": 48, "vocab_size": 60, "max_length": 40}
SMALL |= {"n_encoder_layers": 2, "n_decoder_layers": 2, "dropout": 0.0}
KINDS = {
    "t5-mini": {"relative_buckets": 8, "relative_length": 12},
    "t5-gated-small": {"d_key": 6, "relative_buckets": 8, "relative_length": 12},
    "bart-mini": {"start_id": 5},
}


@pytest.fixture(params=KINDS)
def model(request) -> EncoderDecoder:
    torch.manual_seed(1)
    model = EncoderDecoder(preset(request.param, **SMALL, **KINDS[request.param]))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def sources() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    lengths = torch.tensor([9, 4, 12, 1])
    tokens = torch.randint(6, 60, (4, 12), generator=draw)
    return tokens.where(torch.arange(12) < lengths[:, None], 0), lengths


@pytest.mark.parametrize("beams", [1, 4])
def test_what_is_written_is_what_a_cpu_writes(model, beams):
    tokens, lengths = sources()
    config = DecodeConfig(beams=beams, max_length=14, no_repeat=3, min_length=4)
    expected = generate(model, tokens, lengths, config)
    found = generate(model.cuda(), tokens.cuda(), lengths.cuda(), config)
    assert [[one.tokens for one in each] for each in found] == [
        [one.tokens for one in each] for each in expected
    ]


@torch.no_grad()
def test_logits_are_those_of_a_cpu(model):
    tokens, lengths = sources()
    target = torch.randint(6, 60, (4, 7), generator=torch.Generator().manual_seed(3))
    expected = model(tokens, target, Layout(lengths=lengths))
    found = model.cuda()(tokens.cuda(), target.cuda(), Layout(lengths=lengths.cuda()))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=1e-4)
