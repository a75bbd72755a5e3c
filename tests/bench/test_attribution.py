"""What an output leaned on is counted on passes in which it is known."""

from dataclasses import replace

import pytest
import torch

from bench.attribution import (
    METHODS,
    REMOVALS,
    VECTOR_METHODS,
    Tally,
    asked,
    log_odds,
    removed,
    words_of,
)
from qkv.inspect import Inputs, Trace
from tests.inspect.conftest import INPUTS, make_trace, side


def test_log_odds_are_those_of_the_labels():
    trace = make_trace("encoder-decoder")
    probable, labels = trace["probabilities"][0].double(), INPUTS["encoder-decoder"].labels[0]
    own = probable.gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(log_odds(trace)[0], (own / (1 - own)).log(), atol=1e-4, rtol=1e-4)


def test_a_token_that_nobody_sees_costs_nothing():
    trace = make_trace("encoder-decoder")
    blind = trace
    for key in trace.keys("*.cross_attention.heads"):
        blind = blind.silence(key)
    for how in REMOVALS.values():
        assert float(removed(blind, how).abs().max()) < 1e-6
        assert float(removed(trace, how).abs().max()) > 1e-3


def test_every_method_weighs_every_token_for_every_output():
    shapes = {"encoder-decoder": (4, 5), "decoder": (5, 5)}
    for family, shape in shapes.items():
        trace = make_trace(family)
        trace = Trace(
            trace.model, replace(trace.inputs.repeat_row(0, 1), labels=trace.inputs.labels[:1])
        )
        for _, method in METHODS.values():
            scores, _ = method(trace, list(range(shape[0])))
            assert scores.shape == shape
        assert all(removed(trace, how).shape == shape for how in REMOVALS.values())


def test_a_language_model_is_asked_where_tokens_come_before_a_label():
    assert asked(make_trace("decoder")) == [1, 2, 3]
    assert asked(make_trace("encoder-decoder")) == [0, 2]


def test_a_vector_is_asked_how_far_it_turns():
    trace = make_trace("encoder", head="none")
    trace = Trace(trace.model, Inputs(source=side([2, 4, 5, 3]), output_kind="none"))
    zeroed = REMOVALS["embedding becomes 0, %"]
    (losses,) = removed(trace, zeroed)
    without = trace.change("source.embedding", 0.0, positions=[2])
    vectors = [x["pooled"][0].double() for x in (trace, without)]
    cosine = vectors[0] @ vectors[1] / (vectors[0].norm() * vectors[1].norm())
    assert float(losses[2]) == pytest.approx(1 - float(cosine), abs=1e-6)
    for _, method in VECTOR_METHODS.values():
        assert method(trace, [0])[0].shape == (1, 4)


def test_special_tokens_are_in_no_ranking():
    trace = make_trace("encoder-decoder")
    tokens = trace.inputs.source.tokens[0].tolist()
    assert words_of(trace, [tokens[0], tokens[-1]]) == [
        position for position, token in enumerate(tokens) if token not in (tokens[0], tokens[-1])
    ]
    assert len(words_of(trace, [])) == len(tokens)


def test_the_gap_is_the_median_of_the_texts():
    tally = Tally(dict.fromkeys(REMOVALS, 3), [0.01, 0.5, 0.04])
    assert tally.columns(4)["completeness gap, %"] == 4.0
    assert tally.columns(4)["the sentence's mean, %"] == 75.0
    assert "completeness gap, %" not in Tally().columns(4)
