"""Traces on disk, and traces side by side."""

from __future__ import annotations

import json

import pytest
import torch

from qkv.errors import UserError
from qkv.inspect import Inputs, Trace, load_trace
from tests.inspect.conftest import make_trace, passes_of, side


def test_a_saved_trace_is_the_trace(trace, tmp_path):
    path = trace.save(tmp_path / "before")
    assert path == tmp_path / "before.npz"
    saved = load_trace(tmp_path / "before")
    assert saved.keys() == trace.names("*")
    trace.many(["*"])
    for key in saved:
        assert torch.equal(saved[key], trace[key])
        assert saved.shape(key) == trace.shape(key) and saved.axes(key) == trace.axes(key)
        assert saved.formula(key) == trace.formula(key)
    side = "source" if trace.inputs.source else "target"
    assert saved.tokens(side, row=1) == trace.tokens(side, row=1)


def test_a_part_can_be_saved(tmp_path):
    trace = make_trace("decoder")
    trace.save(tmp_path / "part.npz", ["*.weights", "loss"])
    saved = load_trace(tmp_path / "part.json")
    assert saved.keys() == [*trace.keys("*.weights"), "loss"]
    with pytest.raises(UserError, match="no quantity like"):
        trace.save(tmp_path / "none", "*.nothing")
    with pytest.raises(UserError, match="has no quantity 'logits'"):
        saved["logits"]


def test_weights_and_gradients_are_saved_where_they_are_named(tmp_path):
    trace = make_trace("decoder")
    patterns = ["decoder.*", "decoder.0.*.W_*", "gradient.decoder.1.*.weights", "gradient.*.W_O"]
    saved = load_trace(trace.save(tmp_path / "part", patterns))
    weights = [key for key in saved if saved.find(key).is_weight]
    assert weights == trace.names("decoder.0.*.W_*") and weights
    gradients = [key for key in saved if key.startswith("gradient.")]
    assert set(gradients) == {
        "gradient.decoder.1.self_attention.weights",
        *(f"gradient.decoder.{layer}.self_attention.W_O" for layer in range(3)),
    }
    for key in saved:
        assert saved.shape(key) == trace.shape(key)
        torch.testing.assert_close(saved[key], trace[key])  # rounded as the backward pass is asked
    assert not [key for key in saved.names("*") if saved.find(key).is_weight]


def test_saving_keeps_nothing_in_memory(tmp_path):
    trace = make_trace("decoder")
    trace.save(tmp_path / "trace")
    passes = passes_of(trace)
    trace["logits"]
    assert passes


def test_the_json_says_what_the_numbers_are(tmp_path):
    trace = make_trace("encoder-decoder").silence("encoder.0.self_attention", head=1)
    trace.save(tmp_path / "trace", "loss")
    about = json.loads((tmp_path / "trace.json").read_text())
    assert about["changed"] == ["encoder.0.self_attention.heads"]
    assert about["tokens"]["target"] == [["#2", "#10", "#11", "#12"], ["#2", "#13"]]
    assert about["sizes"]["D"] == 16 and about["model"]["family"] == "encoder-decoder"


def test_broken_files_are_named(tmp_path):
    trace = make_trace("decoder")
    path = trace.save(tmp_path / "trace", "loss")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match=r"trace.npz is missing or damaged"):
        load_trace(path)["loss"]
    (tmp_path / "trace.json").write_text("{")
    with pytest.raises(UserError, match=r"trace.json is damaged"):
        load_trace(path)
    with pytest.raises(UserError, match="There is no trace"):
        load_trace(tmp_path / "other")


def test_a_trace_equals_itself(trace, tmp_path):
    saved = load_trace(trace.save(tmp_path / "trace"))
    for first, second in ((trace, trace), (trace, saved), (saved, trace), (saved, saved)):
        found = first.compare(second)
        assert found.largest == 0 and not found.only_one and found.first_above(0) is None
        assert [difference.key for difference in found.differences] == trace.names("*")


def test_the_first_difference_is_where_the_change_was():
    trace = make_trace("decoder")
    found = trace.compare(trace.silence("decoder.1.feed_forward"))
    assert found.first_above(0).key == "decoder.1.feed_forward.output"
    by_key = {one.key: one for one in found.differences}
    output = trace["decoder.1.feed_forward.output"]
    one = by_key["decoder.1.feed_forward.output"]
    assert one.largest == pytest.approx(float(output.abs().max()))
    assert one.mean == pytest.approx(float(output.abs().mean()), rel=1e-5)
    assert by_key["decoder.0.feed_forward.residual"].largest == 0
    assert by_key["decoder.2.self_attention.scores"].largest < float("inf")  # masks are equal


def test_other_texts_differ_in_shape():
    trace = make_trace("decoder")
    other = Trace(trace.model, Inputs(target=side([2, 4, 5])))
    found = trace.compare(other)
    one = next(one for one in found.differences if one.key == "logits")
    assert one.shapes == ((2, 5, 23), (1, 3, 23)) and one.largest is None
    assert set(found.only_one) == {"target.labels", "target.log_probabilities", "loss"}


def test_two_families_have_little_in_common():
    found = make_trace("decoder").compare(make_trace("encoder"))
    assert {"encoder.output", "decoder.output"} <= set(found.only_one)
    with pytest.raises(UserError, match="in common"):
        make_trace("decoder").compare(make_trace("encoder"), "decoder.*")


def test_two_names_of_a_decoders_text_are_not_compared():
    decoder = make_trace("decoder")
    both = Trace(
        make_trace("encoder-decoder").model,
        Inputs(source=side([4, 5, 6, 7, 3], [8, 9]), target=side([2, 4, 5, 6, 7], [2, 8])),
    )
    found = both.compare(decoder)
    assert "source.tokens" in found.only_one
    assert "target.tokens" in [one.key for one in found.differences]


def test_what_is_no_number_differs():
    trace = make_trace("decoder")
    broken = trace.change("decoder.0.self_attention.output", lambda value: value * float("nan"))
    found = trace.compare(broken)
    assert found.first_above(1e-3).key == "decoder.0.self_attention.output"
    assert found.largest == float("inf")
    assert broken.compare(broken).largest == 0
