"""Every quantity of the notation table equals an independent computation, for each family."""

from __future__ import annotations

import pytest
import torch

from qkv.errors import UserError
from qkv.inspect import Reading, Trace
from qkv.inspect.probe import Ask
from qkv.model import fast
from tests.inspect.conftest import make_trace, side
from tests.inspect.reference import Reference


def real(trace: Trace, key: str, value: torch.Tensor) -> torch.Tensor:
    """The value without what padding makes of it, which means nothing."""
    value = value.clone().double()
    for axis, letter in enumerate(trace.axes(key)):
        if letter not in "ST":
            continue
        read = trace.reading.source if letter == "S" else trace.reading.target
        lengths = read.layout.lengths
        for row, length in enumerate(lengths.tolist() if lengths is not None else []):
            value[row].narrow(axis - 1, length, value.shape[axis] - length).zero_()
    return value


def test_every_quantity_equals_the_reference(trace):
    weights = dict(trace.model.named_parameters())
    expected = Reference(trace.model.config, weights, trace.reading).found
    assert set(expected) == set(trace.keys())
    for key in trace:
        mine, theirs = (real(trace, key, x) for x in (trace[key], expected[key]))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, k=key: k + m)


def test_shapes_are_known_before_anything_is_computed(trace):
    shapes = {key: trace.shape(key) for key in trace}
    assert not trace._kept
    assert {key: tuple(trace[key].shape) for key in trace} == shapes


def test_keys_of_the_notation_table():
    keys = make_trace("encoder-decoder").keys()
    for at in ("encoder.1.self_attention", "decoder.2.self_attention", "decoder.2.cross_attention"):
        for part in ("query", "key", "value", "scores", "weights", "heads", "output", "residual"):
            assert f"{at}.{part}" in keys
    for part in ("hidden", "output", "residual"):
        assert f"encoder.0.feed_forward.{part}" in keys
    others = (
        "source.tokens",
        "target.tokens",
        "target.labels",
        "source.input",
        "target.input",
        "encoder.output",
        "decoder.output",
        "logits",
        "probabilities",
        "loss",
    )
    assert set(others) <= set(keys)
    assert keys.index("encoder.0.self_attention.query") < keys.index("encoder.output")


@pytest.mark.parametrize("family", ["encoder-decoder", "encoder", "decoder"])
@pytest.mark.parametrize("part", ["query", "key", "value", "scores", "weights", "heads"])
def test_one_head_is_its_part_of_all(family, part):
    stack = "encoder" if family == "encoder" else "decoder"
    whole, alone = make_trace(family), make_trace(family)
    key = f"{stack}.1.self_attention.{part}"
    for head in range(whole.shape(key)[1]):
        found = alone.get(key, head=head)
        torch.testing.assert_close(found, whole[key][:, head : head + 1])
    assert Ask(key) not in alone._kept


def test_one_head_is_computed_by_itself_and_the_pass_stops_there(monkeypatch):
    trace, sizes, layers = make_trace("decoder"), [], []
    import qkv.inspect.probe as probe

    def counted(query, *others):
        sizes.append(query.shape[1])
        return scores(query, *others)

    scores = probe.scores
    monkeypatch.setattr(probe, "scores", counted)
    for layer, block in enumerate(trace.model.decoder.blocks):
        block.register_forward_hook(lambda *_, layer=layer: layers.append(layer))
    trace.get("decoder.1.self_attention.weights", head=3)
    assert sizes == [1]
    assert layers == [0]  # the second block was left before its end, the third never begun


def test_one_pass_serves_many_questions(trace):
    passes = []
    trace.model.register_forward_pre_hook(lambda *_: passes.append(1))
    found = trace.many(["*.weights", "logits", "*.residual"])
    assert len(passes) == 1 and len(found) > 5
    trace.many(["*.weights"])
    assert len(passes) == 1
    trace.forget()
    trace.many(["*.weights"])
    assert len(passes) == 2


def test_peek_keeps_nothing(trace):
    trace.peek(["logits"])
    assert not trace._kept


def test_the_model_is_as_it_was(trace):
    model = trace.model.train()
    trace.many(["*"])
    assert model.training
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
        if hasattr(module, "attend"):
            assert module.attend is fast


def test_the_model_is_as_it_was_after_an_error(trace):
    def broken(value):
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        trace.change("logits", broken)["logits"]
    assert not any(module._forward_hooks for module in trace.model.modules())


def test_dropout_is_off(trace):
    model = trace.model.train()
    first = Trace(model, trace.reading)["logits"]
    assert torch.equal(first, Trace(model, trace.reading)["logits"])


def test_shared_layers_are_told_apart():
    shared = make_trace("encoder", shared_layers=True)
    found = shared.many(["*.self_attention.query"])
    one, two = found.values()
    assert not torch.equal(one, two)
    x = shared["encoder.0.feed_forward.residual"]
    fused = shared.model.encoder.blocks[0].self_attention.query_key_value
    query = fused(x)[..., :16].unflatten(-1, (4, 4)).transpose(1, 2)
    torch.testing.assert_close(found["encoder.1.self_attention.query"], query)


def test_labels_are_the_tokens():
    trace = make_trace("encoder-decoder")
    rows, heads, queries, keys = trace.labels("decoder.0.cross_attention.weights")
    assert rows is None and heads[0] == "head 0"
    assert queries == ["#2", "#10", "#11", "#12"] and keys == ["#4", "#5", "#6", "#7", "#3"]
    assert trace.tokens("source", row=1) == ["#8", "#9", "#3"]


def test_a_decoder_reads_one_text_by_either_name():
    trace = make_trace("decoder")
    assert torch.equal(trace["source.tokens"], trace["target.tokens"])
    assert torch.equal(trace["source.input"], trace["target.input"])


def test_unknown_names_suggest_the_near_one(trace):
    with pytest.raises(UserError, match="did you mean 'logits'"):
        trace["logit"]
    with pytest.raises(UserError, match="no quantity like"):
        trace.many(["*.nothing"])
    with pytest.raises(UserError, match="has no heads"):
        trace.get("logits", head=0)
    with pytest.raises(UserError, match="not among its 4, 0 to 3"):
        trace.get(trace.keys("*.weights")[0], head=4)


def test_padding_hides_and_blind_rows_give_zeros():
    trace = make_trace("encoder-decoder")
    weights = trace["decoder.0.cross_attention.weights"]
    assert float(weights[1, :, :, 3:].abs().max()) == 0
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_spans_choose_among_real_tokens():
    trace = make_trace("encoder", head="token", n_labels=2)
    reading = Reading(
        source=side([2, 4, 5, 3], [2, 7, 3]), says="spans", labels=torch.tensor([[1, 2], [1, 1]])
    )
    spans = Trace(trace.model, reading)
    probable, logits = spans["probabilities"], spans["logits"]
    torch.testing.assert_close(probable[0], logits[0].softmax(0))
    torch.testing.assert_close(probable[1, :3], logits[1, :3].softmax(0))
    assert float(probable[1, 3].sum()) == 0
    chosen = [
        logits[0, 1, 0] - logits[0, :, 0].logsumexp(0),
        logits[0, 2, 1] - logits[0, :, 1].logsumexp(0),
        logits[1, 1, 0] - logits[1, :3, 0].logsumexp(0),
        logits[1, 1, 1] - logits[1, :3, 1].logsumexp(0),
    ]
    torch.testing.assert_close(spans["loss"], -torch.stack(chosen).mean())
