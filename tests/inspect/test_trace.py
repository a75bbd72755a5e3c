"""Every quantity of the notation table equals an independent computation, for each family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from qkv.errors import UserError
from qkv.inspect import IGNORE, Inputs, Trace, pad_labels
from qkv.inspect.answers.lens import stack_of
from qkv.inspect.trace.hooks import forward
from qkv.model import fast
from tests.inspect.conftest import CPU, INPUTS, make_trace, passes_of, side
from tests.inspect.reference import Reference


def real(trace: Trace, key: str, value: torch.Tensor) -> torch.Tensor:
    """The value without what padding makes of it, which means nothing."""
    value = value.clone().double()
    for axis, letter in enumerate(trace.axes(key)):
        if letter not in "ST":
            continue
        read = trace.inputs.source if letter == "S" else trace.inputs.target
        lengths = read.layout.lengths
        has_rows = lengths is not None and trace.axes(key)[0] == "B"
        for row, length in enumerate(lengths.tolist() if has_rows else []):
            value[row].narrow(axis - 1, length, value.shape[axis] - length).zero_()
    return value


LINES = {
    "Transformer 2017": ("encoder-decoder", {}),
    "BERT": ("encoder", {}),
    "Llama": ("decoder", {}),
    "GPT-2": (
        "decoder",
        {
            "positions": "learned",
            "norm": "layer",
            "activation": "gelu",
            "gated": False,
            "bias": True,
            "n_kv_heads": 0,
            "tie": "all",
        },
    ),
    "Gemma 2": (
        "decoder",
        {
            "norm": "rms_plus_one",
            "norm_position": "both",
            "embedding_scale": True,
            "score_divisor": 9.0,
            "score_cap": 2.0,
            "logit_cap": 3.0,
        },
    ),
    "T5": (
        "encoder-decoder",
        {
            "positions": "relative",
            "norm": "rms",
            "norm_position": "pre",
            "bias": False,
            "embedding_scale": False,
            "score_division": False,
            "output_scale": True,
            "relative_buckets": 24,
            "relative_length": 24,
        },
    ),
    "DeBERTa": ("encoder", {"positions": "disentangled", "relative_buckets": 16}),
}


@pytest.mark.parametrize("line", LINES)
def test_every_quantity_equals_the_reference(line):
    family, choices = LINES[line]
    trace = make_trace(family, **choices)
    weights = dict(trace.model.named_parameters())
    expected = Reference(trace.model.config, weights, trace.inputs).found
    assert set(expected) == set(trace.names()) == set(trace.keys())
    for key, value in trace.many(trace.names()).items():
        mine, theirs = (real(trace, key, x) for x in (value, expected[key]))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, k=key: k + m)


def test_shapes_are_known_before_anything_is_computed(trace):
    passes = passes_of(trace)
    shapes = {key: trace.shape(key) for key in trace}
    html = trace._repr_html_()
    assert not passes
    values = trace.many(trace.names())
    assert {key: tuple(value.shape) for key, value in values.items()} == shapes
    assert html.count("<tr>") == 1 + len(trace)
    assert all(f">{key}</td>" in html for key in trace)


PARTS = ["query", "key", "value", "products", "scores", "weights", "heads"]


@pytest.mark.parametrize("family", ["encoder-decoder", "encoder", "decoder"])
@pytest.mark.parametrize("part", PARTS)
def test_one_head_is_its_part_of_all(family, part):
    whole, alone = make_trace(family), make_trace(family)
    key = f"{stack_of(whole, None)}.1.self_attention.{part}"
    for head in range(whole.shape(key)[1]):
        found = alone.get(key, head=head)
        torch.testing.assert_close(found, whole[key][:, head : head + 1])


def test_one_head_is_computed_by_itself_and_the_pass_stops_there(monkeypatch):
    trace, sizes, layers = make_trace("decoder"), [], []
    import qkv.inspect.trace.opened as opened

    def counted(scores):
        sizes.append(scores.shape[1])
        return weights(scores)

    weights = opened.weights
    monkeypatch.setattr(opened, "weights", counted)
    for layer, block in enumerate(trace.model.decoder.blocks):
        block.register_forward_hook(lambda *_, layer=layer: layers.append(layer))
    trace.get("decoder.1.self_attention.weights", head=3)
    assert sizes == [1]
    assert layers == [0]  # the second block was left before its end, the third never begun


def test_one_pass_serves_many_questions(trace):
    passes = passes_of(trace)
    values = trace.many(["*.weights", "logits", "*.residual"])
    assert len(passes) == 1 and len(values) > 5
    assert trace.many("*.weights").keys() < values.keys()  # one pattern may be given by itself
    assert len(passes) == 1
    trace.forget()
    trace.peek(["*.weights"])
    trace.many(["*.weights"])  # what was peeked at is not kept
    assert len(passes) == 3


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
    first = Trace(model, trace.inputs)["logits"]
    assert torch.equal(first, Trace(model, trace.inputs)["logits"])


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
    with pytest.raises(UserError, match="no head 4; it has 4, 0 to 3"):
        trace.get(trace.keys("*.weights")[0], head=4)


def test_symbols_of_the_formulas_name_the_same_quantities():
    trace = make_trace("encoder-decoder")
    table = trace.aliases()
    assert set(table.values()) <= set(trace.names()) and not set(table) & set(trace.names())
    assert torch.equal(trace["X_emb"], trace["source.input"])
    at = "decoder.1.self_attention"
    pairs = {"Q": "query", "K": "key", "V": "value", "M": "mask", "A": "heads"}
    for symbol, part in pairs.items():
        assert torch.equal(trace[f"{at}.{symbol}"], trace[f"{at}.{part}"])
    assert torch.equal(trace["decoder.1.H''"], trace[f"{at}.residual"])
    assert torch.equal(trace["gradient.P"], trace["gradient.probabilities"])
    assert list(trace.many(["L", "Logits"])) == ["loss", "logits"]
    assert "decoder.1.H″" in trace and "decoder.9.H″" not in trace
    before = make_trace("decoder")
    assert trace.find(f"{at}.sum").key == f"{at}.sum"
    assert before.find(f"{at}.sum").key == f"{at}.residual"  # where no norm follows


def test_a_star_at_the_end_stands_for_no_weight(trace):
    plain = trace.names("*")
    assert plain == [key for key in trace.names() if not trace.find(key).is_weight]
    stack = stack_of(trace, None)
    assert set(trace.names(f"{stack}*")) <= set(plain)
    assert set(trace.names(f"{stack}.0.self_attention.*")) <= set(plain)
    named = trace.names(f"{stack}.0.self_attention.W_*")
    assert [key.rpartition(".")[2] for key in named] == ["W_Q", "W_K", "W_V", "W_O"]
    assert trace.names("gradient.*") == [
        f"gradient.{key}" for key in plain if not key.endswith(("tokens", "labels"))
    ]


def test_padding_hides_and_blind_rows_give_zeros():
    trace = make_trace("encoder-decoder")
    weights = trace["decoder.0.cross_attention.weights"]
    assert float(weights[1, :, :, 3:].abs().max()) == 0
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_spans_choose_among_real_tokens():
    trace = make_trace("encoder", head="token", n_labels=2)
    inputs = Inputs(
        source=side([2, 4, 5, 3], [2, 7, 3]),
        output_kind="span",
        labels=torch.tensor([[1, 2], [1, 1]]),
    )
    spans = Trace(trace.model, inputs)
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


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_compiled_model_is_traced_as_what_it_was_made_of(family):
    trace = make_trace(family)
    compiled = Trace(torch.compile(trace.model, backend="eager"), trace.inputs)
    key = trace.keys("*.query")[0]
    assert torch.equal(compiled[key], trace[key])


def test_one_head_holds_one_head():
    trace = make_trace("decoder")
    alone = trace.get("decoder.0.self_attention.query", head=1)
    assert alone.untyped_storage().nbytes() == alone.nbytes


def test_a_token_without_a_name_is_a_token():
    trace = make_trace("decoder")
    nameless = replace(trace.inputs.target, names=(("", "a", "", "b", ""), ("x", "y", "", "", "")))
    other = Trace(trace.model, replace(trace.inputs, target=nameless))
    assert other.tokens("target", 0) == ["", "a", "", "b", ""]
    assert other.tokens("target", 1) == ["x", "y"]


def test_values_are_handed_out_as_copies():
    trace = make_trace("decoder")
    trace["target.tokens"][0, 0] = 9
    assert int(trace.inputs.target.tokens[0, 0]) == 2


def test_labels_that_ask_for_nothing_leave_the_loss_out():
    from tests.run.language_tiny import speaker, vocabulary

    language = speaker(vocabulary("bpe"), seed=3)
    assert "loss" not in language.trace("")
    assert "loss" in language.trace("the cat")
    assert pad_labels([[IGNORE]], CPU).tolist() == [[IGNORE]]
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


def compiled_graphs(family: str, traced: bool) -> list[str]:
    """The code of every graph that a pass compiles to, with or without a trace before it."""
    torch._dynamo.reset()
    trace, graphs = make_trace(family), []
    trace.model.eval()
    if traced:
        trace.silence(trace.keys("*.heads")[0])["logits"]
        trace.many(["*"])

    def note(graph: torch.fx.GraphModule, inputs):
        graphs.append(graph.code)
        return graph.forward

    run = torch.compile(forward, backend=note, fullgraph=True)
    with torch.no_grad():
        run(trace.model, INPUTS[family])
    return graphs


def test_the_graph_is_the_same_after_a_trace():
    before, after = (compiled_graphs("encoder-decoder", traced) for traced in (False, True))
    assert len(before) == 1 and before == after


def test_a_compiled_model_is_not_compiled_again_after_a_trace():
    torch._dynamo.reset()
    trace, compiled = make_trace("decoder"), []

    def count(graph: torch.fx.GraphModule, inputs):
        compiled.append(graph)
        return graph.forward

    trace.model.eval()
    run = torch.compile(trace.model, backend=count)
    tokens = trace.inputs.target.tokens
    with torch.no_grad():
        first = run(tokens)
        trace.many(["*.weights"])
        second = run(tokens)
    assert len(compiled) == 1
    assert torch.equal(first, second)
