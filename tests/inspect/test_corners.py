"""Corners in which a trace could go wrong: other models, other rows, other ways to ask."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from qkv.errors import UserError
from qkv.inspect import IGNORE, Reading, Trace, lay_labels, patching_map
from tests.inspect.conftest import CPU, make_trace, side

NAN = float("nan")


def test_heads_keep_their_numbers_in_any_order():
    trace = make_trace("decoder")
    whole, turned = trace.maps(), trace.maps(heads=[3, 2, 1, 0])
    assert turned.heads == (3, 2, 1, 0)
    assert torch.equal(turned.weights, whole.weights.flip(1))
    twice = trace.maps(heads=[1, 1, 1, 1])
    assert all(torch.equal(twice.weights[:, place], whole.weights[:, 1]) for place in range(4))


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_compiled_model_is_traced_as_what_it_was_made_of(family):
    trace = make_trace(family)
    compiled = Trace(torch.compile(trace.model, backend="eager"), trace.reading)
    key = trace.keys("*.query")[0]
    assert torch.equal(compiled[key], trace[key])


def test_whoever_changes_may_run_the_model_again():
    trace = make_trace("decoder")
    other = Trace(trace.model, Reading(target=side([2, 9, 8, 7, 6], [2, 5])))
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


def test_disentangled_positions_look_at_queries_before_anybody_else():
    trace = make_trace("encoder", positions="disentangled", relative_buckets=4)
    with pytest.raises(UserError, match="change the scores instead"):
        trace.change("encoder.0.self_attention.query", 0.0)
    trace.change("encoder.0.self_attention.scores", 0.0)["logits"]


def test_two_names_of_a_decoders_text_are_not_compared():
    decoder = make_trace("decoder")
    both = Trace(
        make_trace("encoder-decoder").model,
        Reading(source=side([4, 5, 6, 7, 3], [8, 9]), target=side([2, 4, 5, 6, 7], [2, 8])),
    )
    found = both.compare(decoder)
    assert "source.tokens" in found.only_one
    assert "target.tokens" in [one.key for one in found.differences]


def test_what_is_no_number_differs():
    trace = make_trace("decoder")
    broken = trace.change("decoder.0.self_attention.output", lambda value: value * NAN)
    found = trace.compare(broken)
    assert found.first_above(1e-3).key == "decoder.0.self_attention.output"
    assert found.largest == float("inf")
    assert broken.compare(broken).largest == 0


def spans() -> Trace:
    trace = make_trace("encoder", head="token", n_labels=2)
    return Trace(trace.model, Reading(source=side([2, 7, 3], [2, 4, 5, 6, 3]), says="spans"))


@pytest.mark.parametrize("row", [0, 1])
def test_answers_are_looked_for_among_the_rows_own_tokens(row):
    trace = spans()
    names = trace.tokens("source", row)
    for step in trace.steps(k=20, row=row):
        assert len(step.candidates) == len(names)
        for one in step.candidates:
            assert one.name == f"{names[one.id]} ({one.id})"
    assert trace.lens(k=20, row=row).probabilities.shape[-1] == len(names)
    assert trace.attribution(row=row, steps=2).scores["source"].shape == (2, len(names))


def test_a_taggers_padding_is_not_explained():
    trace = make_trace("encoder", head="token", n_labels=3)
    read = Reading(source=side([2, 4, 5, 3], [2, 7]), says="classes")
    found = Trace(trace.model, read).attribution(row=1, steps=2)
    assert found.positions == (0, 1) and found.scores["source"].shape == (2, 2)


def test_classes_by_themselves_have_an_entropy_each():
    trace = make_trace("encoder")
    each = Trace(trace.model, replace(trace.reading, says="each", labels=None))
    even = each.change("logits", 0.0)
    (step,) = even.steps()
    assert step.entropy == pytest.approx(3 * torch.tensor(2.0).log().item(), rel=1e-5)


def test_one_head_holds_one_head():
    trace = make_trace("decoder")
    alone = trace.get("decoder.0.self_attention.query", head=1)
    assert alone.untyped_storage().nbytes() == alone.nbytes


def test_inference_mode_does_not_get_in_the_way():
    trace = make_trace("decoder")
    expected = trace.attribution(0, steps=3).scores["target"]
    with torch.inference_mode():
        laid = Trace(
            trace.model, Reading(target=side([2, 4, 5, 6, 7]), labels=trace.reading.labels)
        )
        inside = laid.attribution(0, steps=3).scores["target"]
    torch.testing.assert_close(inside, expected)
    torch.testing.assert_close(laid.attribution(0, steps=3).scores["target"], expected)


def test_a_token_without_a_name_is_a_token():
    trace = make_trace("decoder")
    nameless = replace(trace.reading.target, names=(("", "a", "", "b", ""), ("x", "y", "", "", "")))
    other = Trace(trace.model, replace(trace.reading, target=nameless))
    assert other.tokens("target", 0) == ["", "a", "", "b", ""]
    assert other.tokens("target", 1) == ["x", "y"]


def test_values_are_handed_out_as_copies():
    trace = make_trace("decoder")
    trace["target.tokens"][0, 0] = 9
    assert int(trace.reading.target.tokens[0, 0]) == 2


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda t: t.drift("encoder"), "no stack 'encoder'"),
        (lambda t: t.rollout("nonsense"), "no stack 'nonsense'"),
        (lambda t: t.tokens("target", 2), "no row 2: this trace has 2"),
        (lambda t: t.steps(row=5), "no row 5"),
        (lambda t: t.steps(k=0), "k is 0"),
        (lambda t: t.lens(k=0), "k is 0"),
        (lambda t: t.attribution(output=99), "no output 99: there are 23"),
        (lambda t: t.attribution(output=-1), "no output -1"),
        (lambda t: t.change("decoder.output", 0.0, positions=[99]), "no token 99: it has 5"),
        (lambda t: patching_map(t, t.silence("decoder.output"), ["loss"]), "has no tokens"),
    ],
)
def test_mistakes_get_a_sentence(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask(make_trace("decoder"))


def test_a_search_that_may_write_nothing_says_so():
    trace = make_trace("decoder")
    mute = Trace(trace.model, replace(trace.reading, suppress=tuple(range(23))))
    with pytest.raises(UserError, match="nothing may be generated"):
        mute.beam_tree(max_length=3)


def test_the_last_row_may_be_counted_from_the_end():
    trace = make_trace("decoder")
    assert trace.tokens("target", -1) == trace.tokens("target", 1)
    one, other = (trace.attribution(row=row, steps=2).scores["target"] for row in (-1, 1))
    assert torch.equal(one, other)


def test_the_trees_own_settings_are_enough():
    trace = make_trace("decoder")
    decode = replace(trace.reading.decode, beams=4, n_best=3)
    own = Trace(trace.model, replace(trace.reading, decode=decode))
    assert own.beam_tree(beams=2, max_length=3).beams == 2


def test_labels_that_ask_for_nothing_leave_the_loss_out():
    from tests.run.language_tiny import speaker, vocabulary

    language = speaker(vocabulary("bpe"), seed=3)
    assert "loss" not in language.trace("")
    assert "loss" in language.trace("the cat")
    assert lay_labels([[IGNORE]], CPU).tolist() == [[IGNORE]]
    with pytest.raises(UserError, match="no text to trace"):
        language.trace([])


def test_formulas_say_what_is_computed():
    decoder, encoder = make_trace("decoder"), make_trace("encoder", pooler="tanh")
    assert "RMSNorm(H)" in decoder.formula("decoder.0.self_attention.value")
    assert decoder.formula("decoder.0.self_attention.query").startswith("Q = turn(")
    assert encoder.formula("pooled").startswith("tanh(")
    both = make_trace("encoder-decoder", positions="rotary", output_scale=True)
    assert "turn" not in both.formula("decoder.0.cross_attention.query")
    assert both.formula("logits") == "Logits = H_dec/√D · W_out"
    apart = make_trace("encoder", positions="disentangled", relative_buckets=4)
    assert "√(3·d_k)" in apart.formula("encoder.0.self_attention.scores")
