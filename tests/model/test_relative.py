"""Relative positions: T5's buckets, and a number for each of them and each head on the scores."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention

from qkv.model import Layout, equation, fast, use_path
from qkv.model.positions.relative import Relative, buckets
from tests.model.tiny import (
    DECODERS,
    assert_paths_agree,
    assert_same,
    padded,
    sequences,
    tiny_config,
    tiny_model,
    tokens,
)

PATHS = pytest.mark.parametrize("path", [fast, equation])
CHOICES = DECODERS["relative"]


def relative(causal: bool, **choices: object) -> Relative:
    """Its table drawn so that every number matters."""
    scheme = Relative(tiny_config(**{**CHOICES, **choices}), causal).double()
    torch.nn.init.normal_(scheme.table.weight)
    return scheme


def t5(**choices: object):
    """A model whose distances matter as much as its words."""
    model = tiny_model(**{**CHOICES, "score_division": False, **choices})
    for module in model.modules():
        if isinstance(module, Relative):
            torch.nn.init.normal_(module.table.weight)
    return model


def test_buckets_by_hand():
    """Four of their own; then four, each 8 ** (1 / 4) times as wide as the last, and the rest."""
    apart = torch.tensor([0, 1, 3, 4, 6, 7, 11, 12, 19, 20, 31, 32, 500])
    assert buckets(apart, 8, 32).tolist() == [0, 1, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7, 7]


@pytest.mark.parametrize("causal", [False, True])
@settings(max_examples=60)
@given(n_buckets=st.integers(4, 80), farthest=st.integers(41, 300), length=st.integers(1, 100))
def test_buckets_are_those_of_transformers(causal, n_buckets, farthest, length):
    """Also of distances beyond the longest text and the farthest distance."""
    scheme = relative(
        causal, relative_buckets=n_buckets, relative_length=farthest, max_length=length
    )
    here, there = torch.tensor([0, 3, 170, 2000]), torch.arange(400)
    expected = T5Attention._relative_position_bucket(
        there - here[:, None],
        bidirectional=not causal,
        num_buckets=n_buckets,
        max_distance=farthest,
    )
    assert torch.equal(scheme.distances(here, there).number, expected)


@given(n_buckets=st.integers(2, 40), farthest=st.integers(0, 40), causal=st.booleans())
def test_every_distance_has_a_row_of_the_table(n_buckets, farthest, causal):
    """In any config; to the far side buckets never fall."""
    scheme = relative(causal, relative_buckets=n_buckets, relative_length=farthest)
    number = scheme.distances(torch.tensor([60]), torch.arange(61)).number[0].flip(0)
    assert number[0] == 0 and (number.diff() >= 0).all() and number.max() < n_buckets
    both = scheme.distances(torch.arange(50), torch.arange(50)).number
    assert both.min() >= 0 and both.max() < n_buckets


@pytest.mark.parametrize("causal", [False, True])
def test_the_bias_is_what_the_table_says(causal):
    scheme = relative(causal)
    here, there = torch.tensor([2, 9]), torch.arange(10)
    found = scheme.distances(here, there)
    for query in range(2):
        for key in range(10):
            expected = scheme.table.weight[found.number[query, key]]
            assert_same(found.vectors[0, :, query, key], expected)


@PATHS
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_order_matters_and_place_does_not(path, family):
    """The words alone would say the same in any order; and where a text begins is not seen."""
    model, row = t5(family=family), tokens(1, 9)
    with use_path(model, path), torch.no_grad():
        said = model(row)
        turned = model(row.flip(1)).flip(1)
        assert (said - turned).abs().max() > 1e-3
        if family == "decoder":
            later = torch.cat([tokens(1, 4), row], dim=1)
            assert_same(model(later, Layout(first=torch.tensor([[4]])))[:, 4:], said)


def test_both_paths_have_the_same_gradients():
    source, layout = padded(sequences([14, 3]))
    model, target = t5(), tokens(2, 16)
    assert_paths_agree(model, lambda: model(source, target, layout))


@torch.no_grad()
def test_each_stack_has_one_table_for_all_layers():
    names = [name for name, _ in t5().named_parameters() if "positions" in name]
    assert names == ["encoder.positions.table.weight", "decoder.positions.table.weight"]
