"""The whole model against transformers' MarianMTModel on the same weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.model import EncoderDecoder, Layout, equation, fast, use_path
from tests.parity.pairs import EOS, assert_same_gradients, marian_pair, sources

# The drawn weights are large, so that rounding grows from layer to layer: about 2e-5 of logits of
# size 10 in float32 on the equation path (`fast` runs Marian's own kernel). In float64 nothing
# hides behind rounding.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def heads(count: int) -> dict[str, int]:
    return {"encoder_attention_heads": count, "decoder_attention_heads": count}


SIZES = [
    {},
    {"activation_function": "relu", **heads(1)},
    {"activation_function": "gelu", **heads(8), "encoder_layers": 1, "decoder_layers": 3},
    {
        "d_model": 24,
        **heads(6),
        "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 20,
        "encoder_layers": 3,
        "decoder_layers": 1,
    },
    {"vocab_size": 301, "max_position_embeddings": 16},
]


def both_logits(marian, ours: EncoderDecoder, lengths: list[int], n_target: int, seed: int = 0):
    """Teacher-forced logits of both models on padded sources."""
    source, source_lengths = sources(lengths, ours.config.vocab_size, seed)
    seen = torch.arange(source.shape[1]) < source_lengths[:, None]
    draw = torch.Generator().manual_seed(seed)
    target = torch.randint(ours.config.vocab_size, (len(lengths), n_target), generator=draw)
    target[:, 0] = ours.config.bos_id
    theirs = marian(input_ids=source, attention_mask=seen.long(), decoder_input_ids=target).logits
    return ours(source, target, Layout(lengths=source_lengths)), theirs


def assert_same_logits(pair, dtype, path, *case):
    marian, ours = (model.to(dtype) for model in pair)
    with use_path(ours, path), torch.no_grad():
        mine, theirs = both_logits(marian, ours, *case)
    torch.testing.assert_close(mine, theirs, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("path", [fast, equation])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_logits_equal_marian(sizes, dtype, path):
    assert_same_logits(marian_pair(seed=3, **sizes), dtype, path, [7, 1, 12, 4], 9)


@pytest.fixture(scope="module")
def pair():
    return marian_pair()


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    n_target=st.integers(1, 20),
    seed=st.integers(0, 1000),
    path=st.sampled_from([fast, equation]),
)
def test_logits_equal_marian_at_any_lengths(pair, lengths, n_target, seed, path):
    assert_same_logits(pair, torch.float64, path, lengths, n_target, seed)


def test_gradients_equal_marian():
    pair = tuple(model.double() for model in marian_pair(seed=1))
    outputs = both_logits(*pair, [5, 9, 2], n_target=6)
    # Its bias is no parameter, and its table gives no gradient to its padding row, which starts
    # every target.
    table = "source_embedding.table.weight"
    assert_same_gradients(pair, [outputs], unused=("output.projection.bias", table))
    expected = pair[0].model.shared.weight.grad[:-1]
    torch.testing.assert_close(
        pair[1].source_embedding.table.weight.grad[:-1], expected, atol=1e-10, rtol=0
    )


@torch.no_grad()
def test_the_pair_is_worth_decoding(pair):
    """Greedy outputs differ from source to source, are no mere repetition, and some end in EOS."""
    marian = pair[0].float()
    source, lengths = sources([5, 9, 3, 12, 7, 4, 8, 6])
    seen = (torch.arange(source.shape[1]) < lengths[:, None]).long()
    outputs = marian.generate(
        source, attention_mask=seen, num_beams=1, do_sample=False, max_new_tokens=30
    ).tolist()
    assert len({tuple(row) for row in outputs}) >= 6
    assert 1 <= sum(EOS in row for row in outputs) < len(outputs)
    assert sum(len(set(row)) for row in outputs) / len(outputs) > 4
