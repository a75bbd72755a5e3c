"""Silencing and patching, where the right answer is known."""

from __future__ import annotations

import copy

import pytest
import torch

from qkv.config import ModelConfig
from qkv.errors import UserError
from qkv.inspect import Inputs, Trace, head_importance, patching_map
from qkv.inspect.answers.lens import stack_of
from qkv.model import build_model
from tests.inspect.conftest import make_trace, side


def zeroed(trace: Trace, stack: str, layer: int, name: str, head: int) -> Trace:
    """The same with W_O blind to one head: what silencing it must give."""
    model = copy.deepcopy(trace.model)
    attention = getattr(getattr(model, stack).blocks[layer], name)
    width = attention.d_head
    attention.output.weight.data[:, head * width : (head + 1) * width] = 0
    return Trace(model, trace.inputs)


@pytest.mark.parametrize("head", range(4))
def test_a_silenced_head_is_a_head_that_nobody_reads(trace, head):
    stack = stack_of(trace, None)
    silent = trace.silence(f"{stack}.1.self_attention", head=head)
    expected = zeroed(trace, stack, 1, "self_attention", head)
    for key in ("logits", f"{stack}.1.feed_forward.residual", "loss"):
        torch.testing.assert_close(silent[key], expected[key])
    assert not torch.allclose(silent["logits"], trace["logits"])


def test_cross_attention_is_silenced_too():
    trace = make_trace("encoder-decoder")
    silent = trace.silence("decoder.0.cross_attention", head=2)
    expected = zeroed(trace, "decoder", 0, "cross_attention", 2)
    torch.testing.assert_close(silent["logits"], expected["logits"])


def test_a_silenced_feed_forward_layer_adds_nothing():
    trace = make_trace("decoder").silence("decoder.2.feed_forward")
    after, before = (trace[f"decoder.2.{x}.residual"] for x in ("feed_forward", "self_attention"))
    torch.testing.assert_close(after, before)


def test_changes_do_not_touch_the_trace_they_start_from(trace):
    before = trace["logits"].clone()
    stack = stack_of(trace, None)
    trace.silence(f"{stack}.0.self_attention")["logits"]
    trace.forget()
    assert torch.equal(trace["logits"], before)


def test_changed_weights_are_what_the_values_are_mixed_by():
    trace = make_trace("decoder")
    key = "decoder.1.self_attention"
    first = torch.zeros(trace.shape(f"{key}.weights"))
    first[..., 0] = 1  # everybody looks at the first token
    changed = trace.change(f"{key}.weights", first)
    value = trace[f"{key}.value"].repeat_interleave(2, dim=1)
    torch.testing.assert_close(
        changed[f"{key}.heads"], value[:, :, :1].expand_as(changed[f"{key}.heads"])
    )


def test_a_change_of_scores_goes_through_the_softmax():
    trace = make_trace("encoder")
    key = "encoder.0.self_attention"
    hotter = trace.change(f"{key}.scores", lambda scores: scores * 2)
    torch.testing.assert_close(hotter[f"{key}.weights"], (trace[f"{key}.scores"] * 2).softmax(-1))


def test_changes_add_up():
    trace = make_trace("decoder")
    twice = trace.change("target.input", lambda x: x + 1).change("target.input", lambda x: x * 3)
    torch.testing.assert_close(twice["target.input"], (trace["target.input"] + 1) * 3)


def test_patching_the_whole_stream_gives_the_other_pass():
    trace = make_trace("decoder")
    other = Trace(trace.model, Inputs(target=side([2, 9, 8, 7, 6], [2, 5])))
    for key in ("target.input", "decoder.1.feed_forward.residual", "decoder.output"):
        torch.testing.assert_close(trace.patch(other, key)["logits"], other["logits"])


def test_patching_needs_equal_shapes():
    trace = make_trace("decoder")
    other = Trace(trace.model, Inputs(target=side([2, 9])))
    with pytest.raises(UserError, match="as many tokens"):
        trace.patch(other, "target.input")


def test_one_token_is_patched_from_a_text_of_another_length():
    trace = make_trace("decoder")
    other = Trace(trace.model, Inputs(target=side([2, 9], [2, 5])))
    patched = trace.patch(other, "target.input", positions=[1])["target.input"]
    torch.testing.assert_close(patched[:, 1], other["target.input"][:, 1])
    torch.testing.assert_close(patched[:, 2:], trace["target.input"][:, 2:])
    with pytest.raises(UserError, match="has no token 3; it has 2"):
        trace.patch(other, "target.input", positions=[3])


def test_what_cannot_be_changed_is_said():
    trace = make_trace("decoder")
    with pytest.raises(UserError, match="not computed inside the model"):
        trace.change("loss", torch.zeros(()))
    with pytest.raises(UserError, match="cannot replace one of shape"):
        trace.change("decoder.output", torch.zeros(7))["logits"]
    with pytest.raises(UserError, match="the function returned None, but must return a tensor"):
        trace.change("decoder.output", lambda value: None)["logits"]
    with pytest.raises(UserError, match="has no tokens"):
        make_trace("encoder").change("pooled", torch.zeros_like, positions=[0])


def test_a_change_may_run_the_model_again():
    trace = make_trace("decoder")
    other = Trace(trace.model, Inputs(target=side([2, 9, 8, 7, 6], [2, 5])))
    key = "decoder.1.feed_forward.residual"
    changed = trace.change(key, lambda value: other[key])
    found = changed.many(["decoder.0.self_attention.query", "logits"])
    torch.testing.assert_close(found["logits"], other["logits"])
    own = trace["decoder.0.self_attention.query"]
    assert torch.equal(found["decoder.0.self_attention.query"], own)


def test_a_number_is_a_value_too():
    trace = make_trace("decoder")
    silent = trace.change("decoder.0.self_attention.heads", 0.0)
    expected = trace.silence("decoder.0.self_attention")
    assert torch.equal(silent["logits"], expected["logits"])


def test_queries_that_also_make_a_position_bias_change_it_too():
    trace = make_trace("encoder", positions="disentangled", relative_buckets=4)
    at = "encoder.0.self_attention"
    changed = trace.change(f"{at}.query", 0.0)
    scheme, attention = trace.model.encoder.positions, trace.model.encoder.blocks[0].self_attention
    relative_query, _ = attention.project(scheme.norm(scheme.table.weight))
    places = torch.arange(6)
    distance = scheme.distances(places, places).number.expand(2, 4, 6, 6)
    products = (relative_query @ trace[f"{at}.key"].transpose(-2, -1)).gather(-2, distance)
    expected = products / trace[f"{at}.scale"] + trace[f"{at}.mask"]  # position to content alone
    torch.testing.assert_close(changed[f"{at}.scores"], expected)


# A model made by hand: two tokens are read, and the last position says what stood FIRST.
# Tokens 0 … 3 are unit vectors, dimensions 4 … 7 are where an answer is written, 8 marks the first
# place. Head 0 finds that mark and copies the token there; head 1 copies the token itself to where
# nobody reads it. The answer of "a b" at the last position is a, whatever b is.

WIDTH = 12


@pytest.fixture(scope="module")
def copier():
    config = ModelConfig(
        family="decoder",
        vocab_size=4,
        d_model=WIDTH,
        n_heads=2,
        d_ff=4,
        n_decoder_layers=1,
        positions="learned",
        norm="rms",
        norm_position="pre",
        bias=False,
        embedding_scale=False,
        tie="none",
        max_length=4,
        pad_id=0,
        bos_id=0,
        eos_id=0,
    )
    model = build_model(config)
    for parameter in model.parameters():
        parameter.data.zero_()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
    half = WIDTH // 2
    eye = torch.eye(4)
    model.embedding.table.weight.data[:, :4] = eye
    model.decoder.positions.table.weight.data[:, 9] = 1  # every place: what the query is made of
    model.decoder.positions.table.weight.data[0, 8] = 1  # the mark of the first place
    attention = model.decoder.blocks[0].self_attention
    weight = attention.query_key_value.weight.data
    weight[0, 9] = 100  # head 0 asks, whatever the token, for …
    weight[WIDTH, 8] = 1  # … the mark
    for head in range(2):
        start = 2 * WIDTH + head * half
        weight[start : start + 4, :4] = eye  # both carry the token
    weight[half : half + 4, :4] = 100 * eye  # head 1 asks for a token like itself
    weight[WIDTH + half : WIDTH + half + 4, :4] = eye
    attention.output.weight.data[4:8, :4] = eye  # head 0 writes the answer
    attention.output.weight.data[10, half : half + 4] = 1  # head 1 writes to where nobody reads
    model.output.projection.weight.data[:, 4:8] = 10 * eye
    return model.eval()


def copied(model, first: int, last: int) -> Trace:
    return Trace(model, Inputs(target=side([first, last]), labels=torch.tensor([[-100, first]])))


def test_the_copier_says_what_stood_first(copier):
    for first in range(4):
        for last in range(4):
            probable = copied(copier, first, last)["probabilities"][0, -1]
            assert int(probable.argmax()) == first and float(probable.max()) > 0.99


def test_its_head_looks_where_it_was_made_to(copier):
    weights = copied(copier, 1, 2).get("decoder.0.self_attention.weights", head=0)
    torch.testing.assert_close(weights[0, 0, 1], torch.tensor([1.0, 0.0]), atol=1e-4, rtol=0)


def test_silencing_the_copying_head_leaves_nothing_known(copier):
    silent = copied(copier, 1, 2).silence("decoder.0.self_attention", head=0)
    torch.testing.assert_close(silent["probabilities"][0, -1], torch.full((4,), 0.25))
    idle = copied(copier, 1, 2).silence("decoder.0.self_attention", head=1)
    assert int(idle["probabilities"][0, -1].argmax()) == 1


def test_importance_finds_the_one_head_that_counts(copier):
    worth = head_importance(copied(copier, 1, 2))
    assert worth.shape == (1, 2)
    assert worth[0, 0] > 1.3 and abs(float(worth[0, 1])) < 0.01  # from certain to one in four


def test_patching_finds_the_one_token_that_counts(copier):
    clean = copied(copier, 1, 2)
    corrupted = Trace(
        copier, Inputs(target=side([3, 2]), labels=torch.tensor([[-100, 1]]))
    )  # asked for 1, but 3 stood first
    back = patching_map(clean, corrupted, ["target.input", "decoder.0.feed_forward.residual"])
    expected = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # first the source, then the answer's place
    torch.testing.assert_close(back, expected, atol=1e-4, rtol=0)


def test_a_patched_token_is_the_one_that_is_copied(copier):
    other = copied(copier, 3, 2)
    patched = copied(copier, 1, 2).patch(other, "target.input", positions=[0])
    assert int(patched["probabilities"][0, -1].argmax()) == 3
    unmoved = copied(copier, 1, 2).patch(copied(copier, 1, 0), "target.input", positions=[1])
    assert int(unmoved["probabilities"][0, -1].argmax()) == 1


def test_equal_passes_have_nothing_to_bring_back(copier):
    with pytest.raises(UserError, match="nothing to restore"):
        patching_map(copied(copier, 1, 2), copied(copier, 1, 2), ["target.input"])
