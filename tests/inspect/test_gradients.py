"""Gradients of the loss by quantities and weights equal those of torch.autograd on the model."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect import IGNORE, Inputs, Trace
from qkv.inspect.answers.lens import stack_of
from qkv.inspect.trace.hooks import forward
from qkv.model import use_path
from qkv.model.attention import equation, weights
from qkv.model.lora import AdaptedFrom, Update, attach
from qkv.model.quantized import quantize
from qkv.model.quantized_matrix import Int8Matrix
from tests.inspect.conftest import INPUTS, make_trace, passes_of, side
from tests.inspect.test_trace import LINES

EXACT = {"rtol": 0.0, "atol": 1e-9}


def in_float64(line: str) -> Trace:
    family, choices = LINES[line]
    trace = make_trace(family, **choices)
    return Trace(trace.model.double(), trace.inputs)


def loss_of(trace: Trace) -> Tensor:
    """The loss of the plain model, by torch alone."""
    labels = trace.inputs.labels
    logits = forward(trace.model.eval(), trace.inputs)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE)


@pytest.mark.parametrize("line", LINES)
def test_weights_have_the_gradients_of_their_parameters(line):
    trace = in_float64(line)
    plain = copy.deepcopy(trace.model)
    loss_of(Trace(plain, trace.inputs)).backward()
    values = trace.many(["gradient.*.W_*", "gradient.*.gamma", "gradient.W_out"])
    expected = {name: x.grad for name, x in plain.named_parameters() if x.grad is not None}
    stack = stack_of(trace, None)
    block, at = f"{stack}.blocks.1", f"gradient.{stack}.1"
    fused = expected[f"{block}.self_attention.query_key_value.weight"]
    mine = [values[f"{at}.self_attention.W_{letter}"].T for letter in "QKV"]
    torch.testing.assert_close(torch.cat(mine), fused, **EXACT)
    output = expected[f"{block}.self_attention.output.weight"]
    torch.testing.assert_close(values[f"{at}.self_attention.W_O"].T, output, **EXACT)
    inner = expected[f"{block}.feed_forward.inner.weight"]
    gate = [f"{at}.feed_forward.W_gate"] if trace.model.config.gated else []
    mine = [values[key].T for key in [*gate, f"{at}.feed_forward.W_1"]]
    torch.testing.assert_close(torch.cat(mine), inner, **EXACT)
    gamma = expected[f"{block}.feed_forward_residual.norm.weight"]
    torch.testing.assert_close(values[f"{at}.feed_forward.norm.gamma"], gamma, **EXACT)
    name = "head.projection" if stack == "encoder" else "output.projection"
    shared = {"all": "embedding.table", "output": "embedding.table"}
    if f"{name}.weight" not in expected:
        side_name = "source_" if trace.model.config.family == "encoder-decoder" else ""
        name = side_name + shared[trace.model.config.tie]
    torch.testing.assert_close(values["gradient.W_out"].T, expected[f"{name}.weight"], **EXACT)
    assert all(float(value.abs().max()) > 0 for value in values.values())


def by_hand(trace: Trace, key: str, part: str) -> dict[str, Tensor]:
    """Gradients inside one attention, with every step written out as a node of its own."""
    nodes: dict[str, Tensor] = {}

    def attend(query, key, value, mask, scale, bias=None, dropout=0.0, cap=0.0):
        drawn = mask.additive(query.shape[2], key.shape[2], query.device, query.dtype)
        groups = query.shape[1] // key.shape[1]
        steps = {"query": query, "key": key, "value": value}
        steps["products"] = query @ key.repeat_interleave(groups, 1).transpose(-2, -1)
        steps["scores"] = steps["products"] * scale + drawn
        steps["weights"] = weights(steps["scores"])
        steps["heads"] = steps["weights"] @ value.repeat_interleave(groups, 1)
        nodes.update(steps)
        return steps["heads"]

    model = trace.model
    attention = model.get_submodule(part)
    with use_path(model, equation):
        attention.attend = attend
        loss = loss_of(trace)
    found = torch.autograd.grad(loss, list(nodes.values()))
    return {f"{key}.{name}": x for name, x in zip(nodes, found, strict=True)}


@pytest.mark.parametrize("line", ["Transformer 2017", "BERT", "Llama", "GPT-2"])
def test_steps_of_an_attention_have_the_gradients_of_autograd(line):
    trace = in_float64(line)
    stack = stack_of(trace, None)
    kinds = ["self_attention"]
    kinds += ["cross_attention"] if trace.model.config.family == "encoder-decoder" else []
    for kind in kinds:
        expected = by_hand(trace, f"gradient.{stack}.1.{kind}", f"{stack}.blocks.1.{kind}")
        values = trace.many(list(expected))
        for key, value in expected.items():
            torch.testing.assert_close(values[key], value, **EXACT, msg=lambda m, k=key: k + m)


@pytest.mark.parametrize("line", ["Transformer 2017", "BERT", "Llama", "GPT-2"])
def test_gradients_asked_for_one_by_one_need_one_backward_pass(line, monkeypatch):
    trace = in_float64(line)
    stack = stack_of(trace, None)
    part = f"{stack}.1.self_attention"
    keys = [f"gradient.{part}.{name}" for name in ("query", "weights", "heads", "W_O")]
    alone = {key: Trace(trace.model, trace.inputs).peek([key])[key] for key in keys}
    calls, differentiate = [], torch.autograd.grad

    def counted(*args, **settings):
        calls.append(args)
        return differentiate(*args, **settings)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    values = {key: trace[key] for key in keys}
    head = trace.get(keys[0], head=1)
    of_model = [x for x in calls if isinstance(x[1], list)]  # those by P go through no layer
    assert len(of_model) == 1
    torch.testing.assert_close(values, alone, **EXACT)
    torch.testing.assert_close(head, alone[keys[0]][:, 1:2], **EXACT)


def numerical(trace: Trace, key: str, step: float = 1e-5) -> Tensor:
    """The loss when each number of a quantity is moved a little to either side."""
    value = trace[key]
    found = torch.zeros_like(value)
    for index in range(value.numel()):
        moved = []
        for sign in (1, -1):
            other = value.clone().flatten()
            other[index] += sign * step
            moved.append(trace.change(key, other.view(value.shape))["loss"])
        found.view(-1)[index] = (moved[0] - moved[1]) / (2 * step)
    return found


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (
            "Llama",
            ["self_attention.rotation", "self_attention.scale", "feed_forward.norm.deviation"],
        ),
        ("BERT", ["self_attention.norm.mean", "self_attention.norm.deviation"]),
        ("DeBERTa", ["self_attention.scale"]),
    ],
)
def test_small_steps_have_the_gradients_of_a_difference(line, parts):
    trace = in_float64(line)
    stack = stack_of(trace, None)
    for part in parts:
        key = f"{stack}.0.{part}"
        expected = numerical(trace, key)
        torch.testing.assert_close(trace[f"gradient.{key}"], expected, rtol=1e-5, atol=1e-8)


def test_queries_of_disentangled_positions_also_count_in_the_bias():
    trace = in_float64("DeBERTa")
    key = "encoder.1.self_attention.query"
    direction = torch.randn(trace.shape(key), generator=torch.Generator().manual_seed(1)).double()
    losses = [trace.change(key, lambda q, s=s: q + s * direction)["loss"] for s in (1e-5, -1e-5)]
    along = (losses[0] - losses[1]) / 2e-5
    found = (trace[f"gradient.{key}"] * direction).sum()
    torch.testing.assert_close(found, along, rtol=1e-6, atol=1e-10)


def test_a_mask_and_positions_collect_what_all_rows_read():
    trace = in_float64("Transformer 2017")
    at = "decoder.1.self_attention"
    values = trace.many([f"gradient.{at}.mask", f"gradient.{at}.scores", "gradient.target.*"])
    summed = values[f"gradient.{at}.scores"].sum(dim=(0, 1), keepdim=True)
    torch.testing.assert_close(values[f"gradient.{at}.mask"], summed, **EXACT)
    by_position = values["gradient.target.input"].sum(dim=0)
    torch.testing.assert_close(values["gradient.target.positions"], by_position, **EXACT)
    assert torch.equal(values["gradient.target.embedding"], values["gradient.target.input"])


def test_a_residual_connection_has_a_gradient_of_its_own():
    trace = in_float64("Transformer 2017")
    at = "encoder.1.feed_forward"
    keys = ["skip", "sum", "inner", "output"]
    values = trace.many([f"gradient.{at}.{key}" for key in keys])
    whole = trace["gradient.encoder.1.self_attention.residual"]
    skip, total, inner = (values[f"gradient.{at}.{key}"] for key in keys[:3])
    torch.testing.assert_close(skip, total, **EXACT)
    torch.testing.assert_close(whole, skip + inner @ trace[f"{at}.W_1"].T, **EXACT)


def test_outputs_have_the_gradients_of_cross_entropy():
    trace = in_float64("Transformer 2017")
    labels, probable = trace["target.labels"], trace["probabilities"]
    real = labels != IGNORE
    share = real.double() / real.sum()
    chosen = F.one_hot(labels.clamp(min=0), 23).double() * share[..., None]
    expected = {
        "logits": probable * share[..., None] - chosen,
        "probabilities": -chosen / probable,
        "target.log_probabilities": -share,
        "loss": torch.ones(()).double(),
    }
    for key, value in expected.items():
        torch.testing.assert_close(trace[f"gradient.{key}"], value, **EXACT)


@pytest.mark.parametrize("kind", ["classes", "number", "span"])
def test_every_kind_of_output_has_gradients(kind):
    settings = {
        "classes": ({"n_labels": 3}, torch.tensor([[1, 0, 1], [0, 0, 1]])),
        "number": ({"n_labels": 1}, torch.tensor([[0.5], [-1.0]])),
        "span": ({"head": "token", "n_labels": 2}, torch.tensor([[1, 2], [1, 1]])),
    }
    choices, labels = settings[kind]
    model = make_trace("encoder", **choices).model.double()
    inputs = Inputs(
        source=INPUTS["encoder"].source,
        segments=INPUTS["encoder"].segments,
        output_kind=kind,
        labels=labels,
    )
    trace = Trace(model, inputs)
    logits = trace["logits"].requires_grad_()
    from qkv.inspect.trace.outputs import loss, probabilities

    (expected,) = torch.autograd.grad(loss(logits, labels, inputs), logits)
    torch.testing.assert_close(trace["gradient.logits"], expected, **EXACT)
    if kind != "number":  # the same through P, by the chain rule
        through = torch.autograd.grad(
            probabilities(logits, inputs), logits, trace["gradient.probabilities"]
        )[0]
        torch.testing.assert_close(through, expected, **EXACT)
    trace.many(["gradient.*"])


def test_gradients_of_a_changed_pass_are_those_of_its_loss():
    trace = in_float64("Llama").silence("decoder.1.self_attention", head=2)
    model = copy.deepcopy(trace.model)
    width = model.config.d_head
    columns = slice(2 * width, 3 * width)
    model.decoder.blocks[1].self_attention.output.weight.data[:, columns] = 0
    expected = Trace(model, trace.inputs)
    for key in ("gradient.target.embedding", "gradient.decoder.0.self_attention.W_V"):
        torch.testing.assert_close(trace[key], expected[key], **EXACT)


def test_nothing_is_left_behind():
    trace = make_trace("decoder")
    trace.model.requires_grad_(False)
    trace.model.decoder.norm.requires_grad_(True)
    before = {name: x.requires_grad for name, x in trace.model.named_parameters()}
    trace.model.train()
    with torch.inference_mode():
        values = trace.many(["gradient.*", "gradient.*.W_*"])
    assert not any(value.requires_grad for value in values.values())
    assert trace.model.training
    for name, parameter in trace.model.named_parameters():
        assert parameter.grad is None and parameter.requires_grad == before[name]
    for module in trace.model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    gc.collect()


def test_one_pass_gives_many_gradients_and_keeps_those_of_quantities():
    trace = make_trace("decoder")
    passes = passes_of(trace)
    trace.many(["gradient.*.weights", "gradient.logits"])
    trace["gradient.logits"]
    assert len(passes) == 1
    head = trace.get("gradient.decoder.0.self_attention.weights", head=1)
    assert head.shape == (2, 1, 5, 5)


def test_what_has_no_gradient_is_said():
    trace = make_trace("decoder")
    with pytest.raises(UserError, match="given and not computed"):
        trace["gradient.target.tokens"]
    unlabelled = Trace(trace.model, Inputs(target=side([2, 4, 5])))
    assert "gradient.logits" not in unlabelled and not unlabelled.names("gradient.*")
    with pytest.raises(UserError, match="no loss to differentiate"):
        unlabelled["gradient.logits"]
    with pytest.raises(UserError, match="is a gradient; change a quantity"):
        trace.change("gradient.logits", 0.0)


def test_weights_in_integers_have_no_gradient_but_what_they_compute_has():
    trace = make_trace("decoder")
    floats = {name: x.detach() for name, x in trace.model.named_parameters()}
    quantize(trace.model, lambda name: Int8Matrix.of(floats[name]))
    whole = Trace(trace.model, trace.inputs)
    key = "decoder.1.feed_forward.W_2"
    stored = Int8Matrix.of(floats["decoder.blocks.1.feed_forward.outer.weight"]).float()
    torch.testing.assert_close(whole[key], stored.T)
    with pytest.raises(UserError, match=r"stored as integers.*load the model with dtype='fp32'"):
        whole[f"gradient.{key}"]
    with pytest.raises(UserError, match="stored as integers"):
        whole.many(["gradient.*.W_O"])
    assert f"gradient.{key}" not in whole
    values = whole.many(["gradient.*"])
    assert float(values["gradient.target.embedding"].abs().max()) > 0
    assert whole.names("gradient.*.gamma")


def test_adapted_weights_are_effective_ones():
    trace = make_trace("decoder")
    plain = copy.deepcopy(trace.model)
    name, draw = "decoder.blocks.0.self_attention.query_key_value", torch.manual_seed(2)
    sizes = (16, 8, 8)
    updates = [Update(torch.randn(2, 16), torch.randn(size, 2), 0.5) for size in sizes]
    assert draw is not None
    attach(trace.model, {name: updates}, AdaptedFrom("base"))
    adapted = Trace(trace.model, trace.inputs)
    layer = plain.get_submodule(name)
    layer.weight.data += torch.cat([update.product for update in updates])
    merged = Trace(plain, trace.inputs)
    for letter in "QKV":
        key = f"decoder.0.self_attention.W_{letter}"
        torch.testing.assert_close(adapted[key], merged[key])
        torch.testing.assert_close(adapted[f"gradient.{key}"], merged[f"gradient.{key}"])
