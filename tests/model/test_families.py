"""The three families: which weights they have, how many, and how they start."""

import math

import pytest
import torch

from qkv.config import ModelConfig, preset
from qkv.model import Attention, Decoder, Encoder, EncoderDecoder, Layout, build_model
from tests.model.tiny import assert_same, n_parameters, tiny_config, tiny_model, tokens

FAMILIES = {"encoder-decoder": EncoderDecoder, "encoder": Encoder, "decoder": Decoder}


@pytest.mark.parametrize("family", FAMILIES)
def test_build_model_builds_the_family(family):
    model = build_model(tiny_config(family=family, n_encoder_layers=1, n_decoder_layers=3))
    assert type(model) is FAMILIES[family]
    stacks = {name: len(stack.blocks) for name, stack in model.named_children() if "coder" in name}
    assert (
        stacks
        == {
            "encoder-decoder": {"encoder": 1, "decoder": 3},
            "encoder": {"encoder": 1},
            "decoder": {"decoder": 3},
        }[family]
    )


def test_output_shapes():
    source, target = tokens(2, 5), tokens(2, 3)
    assert tiny_model()(source, target).shape == (2, 3, 23)
    assert tiny_model(family="encoder")(source).shape == (2, 5, 16)
    assert tiny_model(family="decoder")(source).shape == (2, 5, 23)


@torch.no_grad()
def test_forward_is_its_steps():
    """encode, remember, decode, output; and `hidden` is all but the last."""
    model, source, target = tiny_model(), tokens(2, 5), tokens(2, 3)
    memory = model.decoder.remember(model.encode(source), Layout())
    hidden = model.decode(target, memory)
    assert_same(model.hidden(source, target, Layout(), Layout()), hidden)
    assert_same(model(source, target), hidden @ model.output.projection.weight.T)
    decoder = tiny_model(family="decoder", output_bias=True)
    projection = decoder.output.projection
    assert_same(decoder(target), decoder.hidden(target) @ projection.weight.T + projection.bias)


def test_ties():
    def matrices(**choices):
        model = build_model(tiny_config(**choices))
        return (
            model.source_embedding.table.weight,
            model.target_embedding.table.weight,
            (model.output.projection.weight),
        )

    source, target, output = matrices(tie="all")
    assert source is target is output
    source, target, output = matrices(tie="output", source_vocab_size=31)
    assert target is output and source.shape == (31, 16) and output.shape == (23, 16)
    source, target, output = matrices(tie="none")
    assert len({id(source), id(target), id(output)}) == 3
    assert not torch.equal(source, target)


@pytest.mark.parametrize(("tie", "tables"), [("all", 1), ("output", 2), ("none", 3)])
def test_ties_save_parameters(tie, tables):
    shared = n_parameters(build_model(tiny_config()))
    assert n_parameters(build_model(tiny_config(tie=tie))) == shared + (tables - 1) * 23 * 16


@pytest.mark.parametrize(("tie", "tables"), [("all", 1), ("output", 1), ("none", 2)])
def test_ties_of_a_decoder(tie, tables):
    model = build_model(tiny_config(family="decoder", tie=tie))
    same = model.output.projection.weight is model.embedding.table.weight
    assert same == (tables == 1)
    assert n_parameters(model) == n_parameters(model.decoder) + tables * 23 * 16


def test_a_tied_matrix_learns_from_both_ends():
    model = build_model(tiny_config())
    model(tokens(1, 2) * 0 + 5, tokens(1, 2) * 0 + 7).square().sum().backward()
    moved = model.source_embedding.table.weight.grad.abs().sum(-1)
    assert (moved > 0).all()  # by the output, all; by the inputs, 5 and 7 more than others
    assert moved[[5, 7]].min() > moved.median()


def paper_count(config: ModelConfig) -> int:
    """Embedding once; per attention 4 matrices D×D; per feed-forward two D×F; norms; biases."""
    d, f = config.d_model, config.d_ff
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * f + f + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    layers = config.n_encoder_layers * encoder + config.n_decoder_layers * decoder
    return config.vocab_size * d + layers


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("transformer-base", 65),
        ("transformer-big", 213),
        ("transformer-small", 0),
        ("transformer-tiny", 0),
    ],
)
def test_presets_have_the_papers_size(name, millions):
    """Table 3 of the paper; 37,000 shared entries (section 5.1)."""
    config = preset(name, vocab_size=37_000)
    with torch.device("meta"):
        count = n_parameters(build_model(config))
    assert count == paper_count(config)
    if millions:
        assert count == pytest.approx(millions * 1e6, rel=0.03)


def test_grouped_heads_save_parameters():
    full, grouped = (n_parameters(Attention(tiny_config(n_kv_heads=n))) for n in (4, 1))
    assert full - grouped == 2 * 3 * 4 * (16 + 1)  # K and V, three heads of four rows each


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_embeddings_start_normal(positions):
    """N(0, 1/√d_model), so that times √d_model they are of the size of the waves."""
    model = build_model(tiny_config(vocab_size=3000, d_model=64, tie="none", positions=positions))
    for embedding in (model.source_embedding, model.target_embedding):
        weight = embedding.table.weight
        assert weight.std().item() == pytest.approx(64**-0.5, rel=0.02)
        assert weight.mean().item() == pytest.approx(0, abs=2e-3)
        assert weight.abs().max() > 3 * 64**-0.5  # a normal's tail, not a uniform's edge
    if positions == "learned":
        learned = model.encoder.positions.table.weight
        assert learned.std().item() == pytest.approx(0.02, rel=0.1)


def assert_uniform(weight: torch.Tensor, bound: float) -> None:
    assert 0.97 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_projections_start_within_their_bounds():
    """Each of q, k and v is a matrix of its own: 1/√2 of Glorot's bound √(6 / (D + D))."""
    model = build_model(tiny_config(d_model=64, d_ff=96, tie="none"))
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    assert len(attentions) == 6
    bound = math.sqrt(6 / 128) / math.sqrt(2)
    for attention in attentions:
        for name, n_pieces in {"query_key_value": 3, "key_value": 2, "query": 1}.items():
            pieces = linear.weight.split(64) if (linear := getattr(attention, name, None)) else ()
            assert len(pieces) in (0, n_pieces)
            for piece in pieces:
                assert_uniform(piece, bound)
        assert_uniform(attention.output.weight, math.sqrt(6 / 128))
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        assert_uniform(block.feed_forward.inner.weight, math.sqrt(6 / (64 + 96)))
        assert_uniform(block.feed_forward.outer.weight, math.sqrt(6 / (64 + 96)))


def test_a_seed_decides_the_weights():
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        weights.append(torch.cat([p.flatten() for p in build_model(tiny_config()).parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_weights_survive_a_state_dict():
    first, second = tiny_model(positions="learned"), tiny_model(positions="learned")
    source, target = tokens(2, 5), tokens(2, 3)
    assert not torch.allclose(first(source, target), second(source, target))
    second.load_state_dict(first.state_dict())
    assert_same(first(source, target), second(source, target))
