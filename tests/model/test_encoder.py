"""The encoder family: three layouts and two paths with one result, its parts and its heads."""

from itertools import cycle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.config import ModelConfig
from qkv.errors import UserError
from qkv.model import Encoder, Layout, equation, fast, use_path
from tests.model.tiny import (
    DECODERS,
    VOCAB,
    assert_same,
    n_parameters,
    packed,
    padded,
    real,
    sequences,
    tiny_config,
    tiny_model,
    tokens,
)

BERT = {
    "positions": "learned",
    "embedding_norm": True,
    "n_segments": 2,
    "activation": "gelu",
    "embedding_scale": False,
    "pooler": "tanh",
}
CHOICES = {
    "bert": BERT,
    "albert": {**BERT, "shared_layers": True, "d_embedding": 6, "n_encoder_layers": 3},
    "deberta": {**BERT, "positions": "disentangled", "relative_buckets": 8, "n_segments": 0},
    "sinusoidal": {"pooling": "mean", "d_embedding": 6},
    "rotary": {"positions": "rotary", "norm_position": "pre", "norm": "rms", "pooling": "mean"},
    "none": {"positions": "none", "n_kv_heads": 2, "n_segments": 3},
    "relative": DECODERS["relative"],
    "gpt": {
        "positions": "learned",
        "norm_position": "pre",
        "activation": "gelu_tanh",
        "embedding_scale": False,
        "causal": True,
        "pooling": "last",
    },
    "llama": {
        "positions": "rotary",
        "norm_position": "pre",
        "norm": "rms",
        "gated": True,
        "bias": False,
        "n_kv_heads": 2,
        "window": 3,
        "causal": True,
        "pooling": "last",
    },
}
ALL = pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
PATHS = pytest.mark.parametrize("path", [fast, equation])
HEAD_NAMES = ["none", "masked", "sequence", "token"]
HEADS = pytest.mark.parametrize("head", HEAD_NAMES)
Text = tuple[Tensor, Tensor]  # tokens and their segments


def encoder(**choices: object) -> Encoder:
    model = tiny_model(family="encoder", n_labels=3, **choices)
    assert isinstance(model, Encoder)
    return model


def texts(lengths: list[int], kinds: int = 2) -> list[Text]:
    return [(row, torch.randint(kinds, row.shape)) for row in sequences(lengths)]


def alone(model: Encoder, rows: list[Text]) -> Tensor:
    """What the model says of each text by itself, end to end."""
    return torch.cat([model(row[None], segments=kind[None])[0] for row, kind in rows])


def together(model: Encoder, rows: list[Text], lay) -> Tensor:
    """The same of all texts in one tensor."""
    table, layout = lay([row for row, _ in rows])
    segments, _ = lay([kind for _, kind in rows])
    said = model(table, layout, segments % 2)  # padding may be any token of any segment
    if model.config.head == "sequence":
        return said
    return real(said, layout) if lay is padded else said[0]


def one_by_one(model: Encoder, rows: list[Text]) -> Tensor:
    said = alone(model, rows)
    return said.reshape(len(rows), -1) if model.config.head == "sequence" else said


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from([*CHOICES]))
@torch.no_grad()
def test_texts_of_any_lengths(lengths, name):
    model, rows = encoder(**CHOICES[name]), texts(lengths)
    for lay in (packed, padded):
        assert_same(together(model, rows, lay), alone(model, rows))


@HEADS
@ALL
def test_layouts_and_paths_say_the_same_with_the_same_gradients(choices, head):
    model, rows = encoder(head=head, **choices), texts([5, 1, 30, 8])
    weights = [*model.encoder.parameters(), *model.embedding.parameters()]
    results = []
    for path in (fast, equation):
        with use_path(model, path):
            said = [together(model, rows, packed), together(model, rows, padded)]
            said.append(one_by_one(model, rows))
        for found in said:
            assert_same(found, said[-1])
            loss = found.sin().square().mean()
            results.append((loss, *torch.autograd.grad(loss, weights)))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-11, rtol=0)


@ALL
@torch.no_grad()
def test_packed_neighbours_do_not_meet(choices):
    model, rows = encoder(**choices), sequences([3, 4, 2])
    before = model(*packed(rows))
    rows[1] = (rows[1] + 1) % VOCAB
    changed = (model(*packed(rows)) - before).abs().amax(dim=(0, 2)) > 1e-9
    assert changed.tolist() == [False] * 3 + [True] * 4 + [False] * 2


@pytest.mark.parametrize("how", ["first", "mean", "last"])
@torch.no_grad()
def test_empty_packed_sequences_are_vectors_without_meaning(how):
    model = encoder(**BERT | {"pooling": how}, head="sequence")
    rows = sequences([3, 4])
    said = model(*packed(rows))
    offsets = torch.tensor([0, 3, 3, 7, 7, 7], dtype=torch.int32)
    more = model(torch.cat(rows)[None], Layout(offsets=offsets, longest=4))
    assert more.shape == (5, 3) and more.isfinite().all()
    assert_same(more[[0, 2]], said)


@PATHS
@pytest.mark.parametrize("name", ["gpt", "llama"])
@torch.no_grad()
def test_a_causal_encoder_sees_backwards_only(name, path):
    """A token changes its own vector and later ones, and no earlier one in the least."""
    model, row = encoder(**CHOICES[name] | {"window": 0}), tokens(1, 7)
    with use_path(model, path):
        before = model.hidden(row)
        for place in range(7):
            other = row.clone()
            other[0, place] = (other[0, place] + 1) % VOCAB
            changed = (model.hidden(other) - before).abs().amax(dim=(0, 2))
            assert (changed[:place] == 0).all() and (changed[place:] > 1e-9).all()


@pytest.mark.parametrize("lay", [packed, padded])
@pytest.mark.parametrize("positions", ["learned", "rotary", "relative", "none"])
@pytest.mark.parametrize("window", [0, 3])
@torch.no_grad()
def test_a_causal_encoder_is_a_decoder_s_body(positions, window, lay):
    choices = {**CHOICES["gpt"], "positions": positions, "window": window, "relative_buckets": 6}
    body = encoder(**choices)
    model = tiny_model(**{**choices, "causal": False}, family="decoder", tie="none")
    weights = {name.replace("encoder.", "decoder."): w for name, w in body.state_dict().items()}
    missing = model.load_state_dict(weights, strict=False)
    assert missing == (["output.projection.weight"], [])
    table, layout = lay(sequences([5, 1, 30, 8]))
    assert_same(body.hidden(table, layout), model.hidden(table, layout))


@torch.no_grad()
def test_the_last_token_of_a_causal_encoder_is_what_its_labels_see():
    model, rows = encoder(**CHOICES["gpt"], head="sequence"), sequences([5, 1, 9])
    weight = model.head.projection.weight
    expected = torch.stack([model.hidden(row[None])[0, -1] @ weight.T for row in rows])
    for lay in (packed, padded):
        assert_same(model(*lay(rows)), expected)


@torch.no_grad()
def test_no_segments_are_segments_of_zeros():
    model, row = encoder(**BERT), tokens(2, 5)
    zeros, ones = torch.zeros_like(row), torch.ones_like(row)
    assert_same(model(row), model(row, segments=zeros))
    assert (model(row, segments=ones) - model(row)).abs().max() > 0.01


@torch.no_grad()
def test_one_kind_of_segment_tells_no_texts_apart():
    model, row = encoder(**{**BERT, "n_segments": 1}), tokens(2, 6)
    assert_same(model(row, segments=torch.ones_like(row)), model(row))


@torch.no_grad()
def test_the_input_is_a_sum_and_then_a_norm():
    """norm(token + segment + position), as a model of no layers would show it."""
    model, row, kind = encoder(**BERT), tokens(1, 5), torch.tensor([[0, 0, 1, 1, 1]])
    model.encoder.windows = []
    total = model.embedding.table.weight[row] + model.segments.weight[kind]
    total = total + model.encoder.positions.table.weight[:5]
    assert_same(model.hidden(row, segments=kind), model.encoder.input_norm(total))


@torch.no_grad()
def test_narrow_embeddings_are_widened_after_their_norm():
    model, row = encoder(**CHOICES["albert"]), tokens(1, 5)
    model.encoder.windows = []
    narrow = model.encoder.input_norm(
        model.embedding.table.weight[row]
        + model.segments.weight[0]
        + model.encoder.positions.table.weight[:5]
    )
    assert narrow.shape == (1, 5, 6)
    widen = model.encoder.widen
    assert_same(model.hidden(row), narrow @ widen.weight.T + widen.bias)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_shared_block_is_a_stack_of_copies(norm_position):
    """With the parameters of one, and the sum of all copies' gradients."""
    choices = {**BERT, "norm_position": norm_position}
    shared = encoder(**choices, shared_layers=True, n_encoder_layers=3)
    single, copies = encoder(**choices, n_encoder_layers=1), encoder(**choices, n_encoder_layers=3)
    assert n_parameters(shared) == n_parameters(single)
    (block,) = shared.encoder.blocks
    copies.load_state_dict(shared.state_dict(), strict=False)
    for copy in copies.encoder.blocks:
        copy.load_state_dict(block.state_dict())
    row = tokens(2, 7)
    assert_same(shared(row), copies(row))
    for model in (shared, copies):
        model(row).sin().sum().backward()
    for name, parameter in block.named_parameters():
        expected = sum(copy.get_parameter(name).grad for copy in copies.encoder.blocks)
        torch.testing.assert_close(parameter.grad, expected, atol=1e-11, rtol=0)


def test_a_shared_block_starts_as_small_as_many_do():
    """What 2N sublayers add is drawn 1/√2N as large, though they are one block's."""
    sizes = {"d_model": 64, "d_ff": 256, "init": "normal", "n_encoder_layers": 8}
    for shared in (False, True):
        model = Encoder(tiny_config(family="encoder", shared_layers=shared, **sizes))
        weight = model.encoder.blocks[0].feed_forward.outer.weight
        assert weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


@pytest.mark.parametrize("init", ["glorot", "normal"])
@pytest.mark.parametrize("positions", ["learned", "learned_relative", "disentangled"])
def test_tables_start_small(init, positions):
    """Positions and distances at 0.02; the paper's embeddings at 1/√width."""
    model = Encoder(
        tiny_config(
            family="encoder",
            init=init,
            positions=positions,
            d_model=64,
            d_embedding=16,
            vocab_size=3000,
            n_segments=300,
            max_length=300,
        )
    )
    assert model.encoder.positions.table.weight.std().item() == pytest.approx(0.02, rel=0.05)
    expected = 16**-0.5 if init == "glorot" else 0.02
    for table in (model.embedding.table, model.segments):
        assert table.weight.std().item() == pytest.approx(expected, rel=0.05)


@torch.no_grad()
def test_heads_are_parts_of_forward():
    row, layout = padded(sequences([3, 6]))
    for head, shape in {
        "none": (2, 6, 16),
        "masked": (2, 6, VOCAB),
        "token": (2, 6, 3),
        "sequence": (2, 3),
    }.items():
        model = encoder(**BERT, head=head, pair_head=True)
        hidden = model.hidden(row, layout)
        pooled = model.pooler(hidden, layout)
        assert model(row, layout).shape == shape
        assert_same(model(row, layout), model.head(pooled if head == "sequence" else hidden))
        assert model.pair_head(pooled).shape == (2, 2)
    assert encoder(**BERT).pair_head is None


def test_a_tied_head_learns_from_both_ends():
    model = encoder(**BERT, head="masked", tie="output")
    assert model.head.projection.weight is model.embedding.table.weight
    row = torch.full((1, 3), 5)
    F.cross_entropy(model(row)[0], torch.tensor([7, 8, 9])).backward()
    moved = model.embedding.table.weight.grad.abs().sum(-1)
    assert (moved > 0).all()
    untied = encoder(**BERT, head="masked", tie="none")
    F.cross_entropy(untied(row)[0], torch.tensor([7, 8, 9])).backward()
    assert untied.embedding.table.weight.grad.abs().sum(-1).nonzero().tolist() == [[5]]


@PATHS
@pytest.mark.parametrize(("name", "head"), list(zip(CHOICES, cycle(HEAD_NAMES))))
def test_half_precision_runs(name, head, path):
    """Cast as a whole, or by autocast, beside the same in float32."""
    choices = CHOICES[name]
    model, rows = encoder(head=head, **choices).float(), texts([5, 1, 12])
    with use_path(model, path), torch.no_grad():
        expected = together(model, rows, packed)
        with torch.autocast("cpu", torch.bfloat16):
            cast = together(model, rows, packed).float()
        whole = together(model.bfloat16(), rows, packed)
    assert whole.dtype == torch.bfloat16
    for found in (cast, whole.float()):
        assert (found - expected).abs().max() < 0.15 * (1 + expected.abs().max())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"head": "sequence"}, "model: head = 'sequence' needs n_labels of at least 1."),
        ({"head": "token"}, "model: head = 'token' needs n_labels of at least 1."),
        (
            {"image_size": 9, "patch_size": 2},
            "model: image_size (9) must be a multiple of patch_size (2).",
        ),
        (
            {"causal": True, "family": "decoder"},
            "model: causal is for encoders, but the family is 'decoder'; leave it out.",
        ),
        (
            {"causal": True, "convolution": 3},
            "model: a convolution sees the tokens after each one too, which causal forbids; leave "
            "one of them out.",
        ),
        (
            {"causal": True, "head": "sequence", "n_labels": 2},
            "model: the first token of a causal encoder has seen nothing but itself; set pooling = "
            "'last', or 'mean'.",
        ),
        ({"patch_size": 2}, "model: image_size (0) must be a multiple of patch_size (2)."),
        (
            {"family": "decoder", "d_embedding": 8},
            "model: d_embedding is for encoders, but the family is 'decoder'; leave it out.",
        ),
        *(
            (
                {"positions": "disentangled", **values},
                "model: disentangled positions are for an encoder whose heads have keys of their "
                "own; choose other positions, or leave n_kv_heads out.",
            )
            for values in ({"n_kv_heads": 2}, {"family": "decoder"}, {"family": "encoder-decoder"})
        ),
    ],
    ids=str,
)
def test_mistakes(values, message):
    with pytest.raises(UserError) as error:
        ModelConfig.from_dict({"family": "encoder", **values})
    assert str(error.value) == message
