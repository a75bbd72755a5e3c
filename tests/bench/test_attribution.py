"""What an output leaned on is counted on passes in which it is known."""

import torch

from bench.attribution import METHODS, REMOVALS, log_odds, removed
from tests.inspect.conftest import INPUTS, make_trace


def test_log_odds_are_those_of_the_labels():
    trace = make_trace("encoder-decoder")
    probable, labels = trace["probabilities"][0].double(), INPUTS["encoder-decoder"].labels[0]
    own = probable.gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(log_odds(trace), (own / (1 - own)).log(), atol=1e-4, rtol=1e-4)


def test_a_token_that_nobody_sees_costs_nothing():
    trace = make_trace("encoder-decoder")
    blind = trace
    for key in trace.keys("*.cross_attention.heads"):
        blind = blind.silence(key)
    for how in REMOVALS.values():
        assert float(removed(blind, how).abs().max()) < 1e-6
        assert float(removed(trace, how).abs().max()) > 1e-3


def test_every_method_weighs_every_source_token_for_every_output():
    trace = make_trace("encoder-decoder")
    for method in METHODS.values():
        assert method(trace).shape == (4, 5)
