"""Parts of the formulas switched off or changed, against models and sums without them."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qkv.errors import UserError
from qkv.inspect import Inputs, Trace
from qkv.inspect.answers.lens import stack_of
from qkv.model import Attention, build_model
from tests.inspect.conftest import INPUTS, make_trace, side

CHOICES = {
    "post": ("encoder-decoder", {}),
    "pre": ("decoder", {}),
    "both": ("decoder", {"norm_position": "both", "norm": "layer"}),
    "parallel": ("decoder", {"parallel": True}),
}


def with_weights(trace: Trace, **changes) -> Trace:
    """The same weights in a model of other parts."""
    model = build_model(replace(trace.model.config, **changes))
    model.load_state_dict(trace.model.state_dict())
    return Trace(model, trace.inputs)


def attended(trace: Trace, at: str, scores: Tensor) -> Tensor:
    """Heads by hand, of scores."""
    value = trace[f"{at}.value"]
    groups = trace.shape(f"{at}.query")[1] // value.shape[1]
    return scores.softmax(-1) @ value.repeat_interleave(groups, dim=1)


def test_without_the_mask_all_tokens_are_seen(trace):
    at = f"{stack_of(trace, None)}.1.self_attention"
    open_ = trace.silence(f"{at}.mask")
    plain = trace[f"{at}.products"] / trace[f"{at}.scale"]
    torch.testing.assert_close(open_[f"{at}.weights"], plain.softmax(-1))
    by_hand = trace.change(f"{at}.heads", attended(trace, at, plain))
    torch.testing.assert_close(open_["logits"], by_hand["logits"])
    assert not torch.allclose(open_["logits"], trace["logits"])


def test_a_mask_of_one_s_own_hides_what_it_says():
    trace = make_trace("encoder-decoder")
    at = "decoder.0.cross_attention"
    mask = torch.zeros(trace.shape(f"{at}.mask"))
    mask[..., 1] = -torch.inf
    changed = trace.change(f"{at}.mask", mask)
    scores = trace[f"{at}.products"] / trace[f"{at}.scale"] + mask
    torch.testing.assert_close(changed[f"{at}.weights"], scores.softmax(-1))
    assert float(changed[f"{at}.weights"][..., 1].abs().max()) == 0


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_without_positions_the_input_is_the_embedding(positions):
    trace = make_trace("encoder-decoder", positions=positions)
    changed = trace.silence("source.positions").silence("target.PE")
    torch.testing.assert_close(changed["source.input"], trace["source.embedding"])
    model = copy.deepcopy(trace.model)
    for stack in (model.encoder, model.decoder):
        table = stack.positions.table
        (table if positions == "sinusoidal" else table.weight.data).zero_()
    expected = Trace(model, trace.inputs)
    torch.testing.assert_close(changed["logits"], expected["logits"])


def test_without_rotation_there_is_no_order_but_the_mask():
    trace = make_trace("decoder")
    changed = trace
    for key in trace.names("*.rotation"):
        changed = changed.silence(key)
    expected = with_weights(trace, positions="none")
    torch.testing.assert_close(changed["logits"], expected["logits"])
    assert not torch.allclose(changed["logits"], trace["logits"])


def test_a_rotation_turns_by_the_angles_it_is_given():
    trace = make_trace("decoder")
    faster = with_weights(trace, rotary_base=50.0)
    changed = trace
    for key in trace.names("*.rotation"):
        changed = changed.patch(faster, key)
    torch.testing.assert_close(changed["logits"], faster["logits"])


def test_yarn_s_loudness_stays_without_rotation():
    choices = {"rotary_scaling": "yarn", "rotary_factor": 4.0}
    trace = make_trace("decoder", **choices)
    at = "decoder.0.self_attention"
    changed = trace.silence(f"{at}.rotation")
    plain = with_weights(trace, positions="none", rotary_scaling="none", rotary_factor=1.0)
    loudness = float(trace.model.decoder.positions.cosine[0, 0])
    assert loudness > 1.1
    torch.testing.assert_close(changed[f"{at}.query"], plain[f"{at}.query"] * loudness)


@pytest.mark.parametrize("positions", ["learned", "disentangled", "alibi"])
def test_a_changed_scale_is_that_of_another_model(positions):
    trace = make_trace("encoder", positions=positions, relative_buckets=4)
    changed = trace
    for key in trace.names("*.scale"):
        changed = changed.change(key, 1.0)
    model = copy.deepcopy(trace.model)
    before = model.config.score_scale
    for module in model.modules():
        if isinstance(module, Attention):
            module.scale = 1.0
    if positions == "alibi":  # its slopes are not divided
        model.encoder.positions.slopes.mul_(before)
    torch.testing.assert_close(changed["logits"], Trace(model, trace.inputs)["logits"])
    with pytest.raises(UserError, match=r"change it to 1\.0"):
        trace.silence("encoder.0.self_attention.scale")


def test_without_its_bias_a_score_is_the_product_and_the_mask():
    trace = make_trace("encoder", positions="alibi")
    changed = trace
    for key in trace.names("*.bias"):
        changed = changed.silence(key)
    expected = with_weights(trace, positions="none")
    torch.testing.assert_close(changed["logits"], expected["logits"])


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("sublayer", ["self_attention", "feed_forward"])
def test_without_a_residual_connection_only_the_output_is_left(choice, sublayer):
    family, choices = CHOICES[choice]
    trace = make_trace(family, **choices)
    at = f"decoder.1.{sublayer}"
    changed = trace.silence(f"{at}.skip")
    added = trace[f"{at}.output"]  # of what the sublayer reads as before
    residual = trace.model.decoder.blocks[1].get_submodule(f"{sublayer}_residual")
    if choice == "post":
        added = residual.norm(added)
    elif choice == "both":
        added = residual.output_norm(added)
    torch.testing.assert_close(changed[f"{at}.residual"], added.detach())
    expected = trace.change(f"{at}.residual", added.detach())
    torch.testing.assert_close(changed["logits"], expected["logits"])


@pytest.mark.parametrize("choice", ["pre", "both", "parallel"])
def test_a_silent_layer_is_a_layer_that_is_not_there(choice):
    family, choices = CHOICES[choice]
    trace = make_trace(family, **choices)
    silent = trace.silence("decoder.1")
    model = copy.deepcopy(trace.model)
    del model.decoder.blocks[1]
    model.decoder.windows = model.decoder.windows[:2]
    model.config = replace(model.config, n_decoder_layers=2)
    torch.testing.assert_close(silent["logits"], Trace(model, trace.inputs)["logits"])


def test_a_silent_layer_of_a_post_norm_model_only_normalises():
    trace = make_trace("encoder-decoder").silence("decoder.1")
    block, x = trace.model.decoder.blocks[1], trace["decoder.0.feed_forward.residual"]
    for name in ("self_attention", "cross_attention", "feed_forward"):
        x = block.get_submodule(f"{name}_residual").norm(x).detach()
        torch.testing.assert_close(trace[f"decoder.1.{name}.residual"], x)


def test_a_silent_first_layer_has_no_convolution():
    trace = make_trace("encoder", convolution=3).silence("encoder.0")
    x, stack = trace["source.input"], trace.model.encoder
    block = stack.blocks[0]
    x = block.feed_forward_residual.norm(block.self_attention_residual.norm(x))
    expected = stack.neighbours.norm(x).detach()
    torch.testing.assert_close(trace["encoder.0.convolution.residual"], expected)


def test_a_hidden_source_token_is_one_that_was_never_read():
    trace = make_trace("encoder-decoder")
    rows = [[4, 5, 6, 7, 3], [8, 9, 6, 4, 3]]
    inputs = replace(trace.inputs, source=side(*rows))
    shorter = replace(trace.inputs, source=side(*(row[:-1] for row in rows)))
    hidden = Trace(trace.model, inputs).hide(4)
    expected = Trace(trace.model, shorter)
    torch.testing.assert_close(hidden["logits"], expected["logits"])
    torch.testing.assert_close(hidden["encoder.output"][:, :4], expected["encoder.output"])
    assert float(hidden["decoder.1.cross_attention.weights"][..., 4].abs().max()) == 0


def test_a_hidden_target_token_is_seen_by_nobody():
    trace = make_trace("encoder-decoder")
    hidden = trace.hide([0, -2], side="target")
    for key in trace.names("decoder.*.self_attention.weights"):
        assert float(hidden[key][..., [0, 2]].abs().max()) == 0
        assert torch.equal(hidden[key][:, :, 0], torch.zeros_like(hidden[key][:, :, 0]))
        torch.testing.assert_close(hidden[key][:, :, 1, 1], torch.ones(2, 4))
    at = "decoder.0.self_attention"
    scores = trace[f"{at}.scores"].clone()
    scores[..., [0, 2]] = -torch.inf
    expected = scores[:, :, 1:].softmax(-1)
    torch.testing.assert_close(hidden[f"{at}.weights"][:, :, 1:], expected)
    assert torch.equal(hidden["encoder.output"], trace["encoder.output"])


def test_a_token_that_is_not_there_cannot_be_hidden():
    with pytest.raises(UserError, match="has no token 5; it has 5, from 0 on"):
        make_trace("decoder").hide(5)
    with pytest.raises(UserError, match="has no target"):
        make_trace("encoder").hide(0, side="target")


@pytest.mark.parametrize("renormalise", [False, True])
def test_one_attention_weight_is_changed_alone_or_with_its_row(renormalise):
    trace = make_trace("decoder")
    at = "decoder.1.self_attention"
    weights = trace[f"{at}.weights"]
    changed = trace.change(
        f"{at}.weights", 0.9, head=2, positions=[3], keys=[1], renormalise=renormalise
    )
    expected = weights.clone()
    expected[:, 2, 3, 1] = 0.9
    if renormalise:
        for row in range(2):
            for other in (0, 2, 3, 4):
                old = weights[row, 2, 3]
                expected[row, 2, 3, other] = old[other] * 0.1 / (old.sum() - old[1])
        torch.testing.assert_close(expected[:, 2, 3].sum(-1), torch.ones(2))
    torch.testing.assert_close(changed[f"{at}.weights"], expected)
    value = trace[f"{at}.value"].repeat_interleave(2, dim=1)
    torch.testing.assert_close(changed[f"{at}.heads"], expected @ value)


def test_cells_are_every_pair_of_positions_and_keys():
    trace = make_trace("decoder")
    key = "decoder.0.self_attention.scores"
    changed = trace.change(key, 7.0, positions=[2, 3], keys=[0, 1])
    expected = trace[key].clone()
    expected[:, :, 2:4, :2] = 7.0
    assert torch.equal(changed[key], expected)
    with pytest.raises(UserError, match="has no attended tokens"):
        trace.change("logits", 0.0, keys=[0])
    with pytest.raises(UserError, match="does not sum to 1"):
        trace.change(key, 0.0, renormalise=True)


def test_switches_compose_in_any_order():
    trace = make_trace("decoder")
    at = "decoder.0.self_attention"
    one = trace.silence(f"{at}.mask").change(f"{at}.scale", 1.0).silence("decoder.2").hide(1)
    other = trace.silence("decoder.2").change(f"{at}.scale", 1.0).silence(f"{at}.mask").hide(1)
    assert torch.equal(one["logits"], other["logits"])
    scores = trace[f"{at}.products"].clone()
    scores[..., 1] = -torch.inf
    torch.testing.assert_close(one[f"{at}.weights"], scores.softmax(-1))
    gate = one.change("decoder.1.feed_forward.gate", 0.0)  # SiLU(0) = 0
    assert float(gate["decoder.1.feed_forward.hidden"].abs().max()) == 0


@pytest.mark.parametrize(
    ("part", "remake"),
    [
        ("mean", lambda norm, x: x / (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()),
        ("deviation", lambda norm, x: x - x.mean(-1, keepdim=True)),
    ],
)
def test_a_changed_step_of_a_norm_goes_through_the_rest(part, remake):
    trace = make_trace("encoder")
    at = "encoder.1.feed_forward"
    value = {"mean": 0.0, "deviation": 1.0}[part]
    changed = trace.change(f"{at}.norm.{part}", value)
    norm = trace.model.encoder.blocks[1].feed_forward_residual.norm
    expected = remake(norm, trace[f"{at}.sum"]) * norm.weight + norm.bias
    torch.testing.assert_close(changed[f"{at}.residual"], expected.detach())


def test_weights_cannot_be_changed_in_a_trace():
    with pytest.raises(UserError, match="is a weight"):
        make_trace("decoder").change("W_out", 0.0)


def test_a_change_does_not_reach_a_pass_that_an_edit_runs():
    trace = make_trace("encoder-decoder")
    other = Trace(trace.model, Inputs(source=INPUTS["encoder-decoder"].source, target=side([2, 9])))

    def run_other(value: Tensor) -> Tensor:
        other.forget()
        other["logits"]
        return value

    plain = other["logits"]
    changed = trace.silence("source.positions").change("encoder.0.self_attention.output", run_other)
    expected = trace.silence("source.positions")["logits"]
    torch.testing.assert_close(changed["logits"], expected)
    torch.testing.assert_close(other["logits"], plain)
    assert not vars(trace.model.encoder.positions).get("add")
