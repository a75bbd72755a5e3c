"""Rows that hold several sequences, or padding in front, equal each sequence alone."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.model import Decoder, Layout, equation, fast, use_path
from tests.model.tiny import DECODERS, VOCAB, assert_same, packed, sequences, tiny_model, tokens

PATHS = pytest.mark.parametrize("path", [fast, equation])
ALL = pytest.mark.parametrize("choices", DECODERS.values(), ids=DECODERS)
CUTS = [[4, 1, 7], [12], [5, 5, 2]]  # the sequences of each row


def decoder(**choices: object) -> Decoder:
    model = tiny_model(family="decoder", **choices)
    assert isinstance(model, Decoder)
    return model


def rows_of(rows: list[list[Tensor]]) -> tuple[Tensor, Layout]:
    """Sequences end to end in rows of one length, and where each token's own begins."""
    table = torch.stack([torch.cat(row) for row in rows])
    first = []
    for row in rows:
        begins = [sum(len(sequence) for sequence in row[:i]) for i in range(len(row))]
        first.append([b for b, sequence in zip(begins, row, strict=True) for _ in sequence])
    return table, Layout(first=torch.tensor(first))


def in_front(sequences: list[Tensor], extra: int = 0) -> tuple[Tensor, Layout, Tensor]:
    """One sequence a row with anything in front, its layout, and which tokens are real."""
    width = max(map(len, sequences)) + extra
    table = tokens(len(sequences), width)
    for row, sequence in zip(table, sequences, strict=True):
        row[width - len(sequence) :] = sequence
    first = torch.tensor([[width - len(sequence)] for sequence in sequences])
    return table, Layout(first=first), torch.arange(width) >= first


def alone(model: Decoder, sequences: list[Tensor]) -> Tensor:
    return torch.cat([model(sequence[None])[0] for sequence in sequences])


@PATHS
@ALL
@torch.no_grad()
def test_a_row_of_sequences_is_each_alone_is_packed(path, choices):
    model = decoder(**choices)
    rows = [sequences(cuts) for cuts in CUTS]
    flat = [sequence for row in rows for sequence in row]
    with use_path(model, path):
        found = model(*rows_of(rows)).flatten(0, 1)
        assert_same(found, alone(model, flat))
        assert_same(found, model(*packed(flat))[0])


rows_of_forty = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(
    lambda sizes: [*sizes, 40 - sum(sizes)]
)


@settings(max_examples=25)
@given(st.lists(rows_of_forty, min_size=1, max_size=3), st.data())
@torch.no_grad()
def test_sequences_cut_anywhere(rows, data):
    model = decoder(**DECODERS[data.draw(st.sampled_from([*DECODERS]))])
    drawn = [sequences(cuts) for cuts in rows]
    found = model(*rows_of(drawn)).flatten(0, 1)
    assert_same(found, alone(model, [sequence for row in drawn for sequence in row]))


@PATHS
@ALL
def test_rows_have_the_loss_and_gradients_of_packed_and_of_padded_ones(path, choices):
    model = decoder(**choices)
    rows = [sequences(cuts) for cuts in CUTS]
    flat = [sequence for row in rows for sequence in row]
    labels = tokens(sum(map(len, flat)))
    table, layout, real = in_front(flat, extra=1)
    results = []
    with use_path(model, path):
        for logits in (
            model(*rows_of(rows)).flatten(0, 1),
            model(*packed(flat))[0],
            model(table, layout)[real],
            alone(model, flat),
        ):
            loss = F.cross_entropy(logits, labels)
            results.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for result in results[:-1]:
        torch.testing.assert_close(result, results[-1], atol=1e-11, rtol=0)


@ALL
@torch.no_grad()
def test_neighbours_do_not_meet(choices):
    """A changed token changes its own sequence from there on, and nothing else."""
    model = decoder(**choices)
    table, layout = rows_of([sequences(cuts) for cuts in CUTS])
    other = table.clone()
    other[:, 6] = (table[:, 6] + 1) % VOCAB
    changed = (model(table, layout) - model(other, layout)).abs().amax(dim=-1) > 1e-9
    ends = [12, 12, 10]
    for row, end in enumerate(ends):
        places = changed[row].nonzero().flatten().tolist()
        assert places[0] == 6 and places[-1] < end
        if "window" not in choices:
            assert places == [*range(6, end)]


@PATHS
@ALL
@pytest.mark.parametrize("extra", [0, 3])
@torch.no_grad()
def test_padding_in_front_changes_nothing(path, choices, extra):
    model = decoder(**choices)
    prompts = sequences([5, 1, 9, 3])
    table, layout, real = in_front(prompts, extra)
    with use_path(model, path):
        assert_same(model(table, layout)[real], alone(model, prompts))
        spelt_out = Layout(first=layout.first.expand(table.shape))
        assert_same(model(table, spelt_out), model(table, layout))


@PATHS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_padding_in_front_does_no_harm(path, dtype):
    """It sees nothing, yields finite numbers and gradients, and its token learns nothing."""
    model = decoder(**DECODERS["window"], tie="none").to(dtype)
    prompts = [sequence % 20 for sequence in sequences([5, 1, 9])]
    table, layout, real = in_front(prompts, extra=4)
    table[~real] = 21
    with use_path(model, path):
        logits = model(table, layout)
    assert logits.isfinite().all()
    logits[real].float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    gradient = model.embedding.table.weight.grad
    assert (gradient[21] == 0).all() and (gradient[prompts[0][0]] != 0).any()


def test_positions_begin_where_sequences_do():
    _, layout = rows_of([sequences(cuts) for cuts in CUTS])
    cpu = torch.device("cpu")
    assert layout.positions(12, cpu).tolist() == [
        [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
        [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1],
    ]
    _, layout, _ = in_front(sequences([4, 1, 2]))
    assert layout.positions(4, cpu).tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [0, 0, 0, 1]]
    for start in (4, torch.tensor(4)):  # two more tokens, after a cache of four
        assert layout.positions(2, cpu, start).tolist() == [[4, 5], [1, 2], [2, 3]]
