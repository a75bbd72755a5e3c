"""Steps, lens, drift, rollout and attribution against what they are by definition."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from qkv.errors import UserError
from qkv.inspect import Inputs, Trace, patching_map
from qkv.inspect.answers.lens import stack_of
from qkv.tasks import load
from tests.inspect.conftest import INPUTS, make_trace, side


def test_steps_are_the_rows_of_the_probabilities():
    trace = make_trace("encoder-decoder")
    steps, probable = trace.steps(k=4), trace["probabilities"][0]
    assert [step.after for step in steps] == trace.tokens("target")
    for place, step in enumerate(steps):
        values, ids = probable[place].topk(4)
        assert [one.id for one in step.candidates] == ids.tolist()
        assert [one.probability for one in step.candidates] == pytest.approx(values.tolist())
        plain = -(probable[place] * probable[place].log()).sum()
        assert step.entropy == pytest.approx(float(plain), rel=1e-5)
        label = trace["target.labels"][0, place]
        assert step.label.id == label
        order = probable[place].argsort(descending=True).tolist()
        assert order.index(int(label)) + 1 == step.rank


def test_a_shorter_row_has_fewer_steps():
    trace = make_trace("encoder-decoder")
    assert len(trace.steps(row=0)) == 4 and len(trace.steps(row=1)) == 2


def test_a_classifier_has_one_step_and_labels_have_names():
    (step,) = make_trace("encoder").steps()
    assert {one.name for one in step.candidates} == {"class 0", "class 1", "class 2"}
    assert step.label.name == "class 2"


def test_the_last_position_of_a_text_has_no_label():
    *others, last = make_trace("decoder").steps()
    assert last.label is None and last.rank is None
    assert all(step.label for step in others)


def test_the_lens_of_the_last_layer_is_the_output(trace):
    lens = trace.lens(k=3)
    probable = trace["probabilities"][0]
    probable = probable[None] if probable.dim() == 1 else probable[: len(lens.tokens)]
    torch.testing.assert_close(lens.probabilities[-1], probable.topk(3).values)
    torch.testing.assert_close(lens.of_last[-1], probable.amax(-1))
    assert lens.layers[0] == "input" and len(lens.layers) == len(lens.probabilities)


def test_the_lens_reads_a_layer_with_norm_and_output():
    trace = make_trace("decoder")
    stream = trace["decoder.0.feed_forward.residual"]
    with torch.no_grad():
        expected = trace.model.output(trace.model.decoder.norm(stream))[0].softmax(-1)
    torch.testing.assert_close(trace.lens().probabilities[1, :, 0], expected.amax(-1))


def test_the_lens_needs_an_output():
    trace = make_trace("encoder", head="none", n_labels=0)
    bare = Trace(trace.model, Inputs(source=side([2, 4, 3]), output_kind="none"))
    with pytest.raises(UserError, match="no output"):
        bare.lens()
    with pytest.raises(UserError, match="no probabilities"):
        bare.steps()
    with pytest.raises(UserError, match="Only the decoder"):
        make_trace("encoder-decoder").lens(stack="encoder")


def test_drift_is_measured_from_the_input(trace):
    stack = stack_of(trace, None)
    drift = trace.drift()
    start = trace["source.input" if stack == "encoder" else "target.input"][0]
    last = trace[trace.keys(f"{stack}.*.feed_forward.residual")[-1]][0]
    torch.testing.assert_close(drift.cosine[0], torch.ones(len(drift.tokens)))
    torch.testing.assert_close(drift.cosine[-1], F.cosine_similarity(last, start, dim=-1))
    distance = (last - start).norm(dim=-1) / start.norm(dim=-1)
    torch.testing.assert_close(drift.distance[-1], distance)
    assert float(drift.step[0].abs().max()) == 0


def test_a_silent_model_does_not_drift():
    trace = make_trace("decoder")
    for key in trace.keys("*.output"):
        if key != "decoder.output":
            trace = trace.silence(key)
    torch.testing.assert_close(trace.drift().cosine, torch.ones_like(trace.drift().cosine))
    assert float(trace.drift().distance.max()) == 0


def test_rollout_of_a_decoder_is_a_causal_distribution():
    trace = make_trace("decoder")
    rolled = trace.rollout()
    torch.testing.assert_close(rolled.sum(-1), torch.ones(5))
    assert float(rolled.triu(1).abs().max()) == 0
    one = trace.get("decoder.0.self_attention.weights")[0].mean(0)
    for layer in range(3):
        looked = trace[f"decoder.{layer}.self_attention.weights"][0].mean(0)
        step = (looked + torch.eye(5)) / 2
        one = step if layer == 0 else step @ one
    torch.testing.assert_close(rolled, one)


def test_rollout_across_hands_on_what_the_source_gave():
    trace = make_trace("encoder-decoder")
    rolled = trace.rollout()
    assert rolled.shape == (4, 5)
    torch.testing.assert_close(rolled.sum(-1), torch.full((4,), 1 - 0.5**3))
    assert trace.rollout(stack="encoder").shape == (5, 5)


def log_odds(trace: Trace, place: int, id: int) -> float:
    probable = float(trace["probabilities"][0].reshape(-1, 23)[place, id].double())
    return math.log(probable) - math.log(1 - probable)


def grown(trace: Trace, name: str, token: int, factor: float) -> Trace:
    return trace.change(f"{name}.embedding", lambda x: x * factor, positions=[token])


def test_an_attribution_hatches_the_tokens_that_an_output_cannot_see():
    found = make_trace("encoder-decoder").attribution(positions=[1, 2])
    source, target = found.parts()
    assert not source.shut.any()
    assert target.shut[0].tolist() == [[False, False, True, True], [False, False, False, True]]
    assert not found.scores["target"][torch.from_numpy(target.shut[0])].any()
    figure = found.draw()
    assert figure.axes[1].images[0].get_array().mask.tolist() == target.shut[0].tolist()
    assert "Hatched: a later token" in figure.get_supxlabel()


def test_gradient_times_input_is_what_small_growth_does():
    trace = make_trace("encoder-decoder", activation="gelu")  # ReLU has kinks
    found = trace.attribution(positions=[1, 2], method="gradient")
    assert found.positions == (1, 2) and found.outputs == ("#11", "#12")
    step = 1e-3
    for row, (place, id) in enumerate(((1, 11), (2, 12))):
        for name, count in (("source", 5), ("target", 4)):
            for token in range(count):
                more, less = (grown(trace, name, token, 1 + sign * step) for sign in (1, -1))
                expected = (log_odds(more, place, id) - log_odds(less, place, id)) / (2 * step)
                assert float(found.scores[name][row, token]) == pytest.approx(expected, abs=3e-3)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_integrated_gradients_add_up_to_what_the_text_has_changed(family):
    trace = make_trace(family, activation="gelu")
    found = trace.attribution(positions=[1, 2], steps=200)
    trace = Trace(trace.model, trace.inputs.repeat_row(0, 1))
    alike = trace
    for key in trace.keys("*.embedding"):
        alike = alike.change(key, lambda x: x.mean(dim=1, keepdim=True).expand_as(x))
    for row, place in enumerate((1, 2)):
        id = int(INPUTS[family].labels[0, place])
        total = sum(float(scores[row].sum()) for scores in found.scores.values())
        expected = log_odds(trace, place, id) - log_odds(alike, place, id)
        assert total == pytest.approx(expected, abs=0.02 * max(1, abs(expected)))


def test_a_few_points_at_a_time_are_all_points(monkeypatch):
    trace = make_trace("encoder-decoder")
    whole = trace.attribution(steps=7)
    at_once = "qkv.inspect.answers.attribution.MAX_TOKENS_IN_PASS"
    monkeypatch.setattr(at_once, 20)  # two points of nine tokens
    for name, scores in trace.attribution(steps=7).scores.items():
        torch.testing.assert_close(scores, whole.scores[name], atol=1e-5, rtol=1e-4)


def test_one_row_of_several_is_explained_alone():
    trace = make_trace("encoder-decoder")
    alone = Trace(trace.model, Inputs(source=side([8, 9, 3]), target=side([2, 13])))
    expected = alone.attribution(output=5, steps=4)
    found = trace.attribution(output=5, steps=4, row=1)
    assert found.tokens == expected.tokens
    for name, scores in found.scores.items():
        torch.testing.assert_close(scores, expected.scores[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_removal_is_what_an_output_loses_without_a_token(family, monkeypatch):
    trace = make_trace(family)
    alone = Trace(trace.model, trace.inputs.repeat_row(0, 1))
    found = trace.attribution(positions=[1, 2])
    assert (found.method, found.gap) == ("removal", None)
    monkeypatch.setattr("qkv.inspect.answers.attribution.MAX_TOKENS_IN_PASS", 20)
    again = trace.attribution(positions=[1, 2], method="removal")
    for key in alone.keys("*.embedding"):
        name = key.partition(".")[0]
        mean = alone[key].mean(dim=1, keepdim=True)
        torch.testing.assert_close(again.scores[name], found.scores[name], atol=1e-5, rtol=1e-4)
        for token in range(alone[key].shape[1]):
            without = alone.change(key, mean, positions=[token])
            for row, place in enumerate((1, 2)):
                id = int(INPUTS[family].labels[0, place])
                expected = log_odds(alone, place, id) - log_odds(without, place, id)
                assert float(found.scores[name][row, token]) == pytest.approx(expected, abs=1e-4)


def test_the_gap_of_integrated_gradients_is_told_and_made_smaller():
    trace = make_trace("decoder")
    rough, refined = trace.attribution(steps=1), trace.attribution(method="integrated")
    assert rough.gap > 0.05 >= refined.gap
    for found, said in ((rough, "Not converged: scores miss"), (refined, "Scores add up to")):
        assert said in str(found) and said in found._repr_html_()
        assert said in found.draw().get_supxlabel()
    assert "add up" not in str(trace.attribution(method="removal"))


def test_where_removal_takes_too_long_it_is_gradients(monkeypatch):
    monkeypatch.setattr("qkv.inspect.answers.attribution.MAX_WORK", 1)
    trace = make_trace("decoder")
    assert trace.attribution(positions=1).method == "integrated"
    assert trace.attribution(positions=1).gap == trace.attribution(positions=1, steps=32).gap


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_weights_in_eight_bits_count_as_much_as_floats(dtype, monkeypatch):
    trace = load("zh-en", dtype=dtype).trace("我爱你", "I")
    n_tokens = len(trace.tokens("source")) + len(trace.tokens("target"))
    for n_weights, method in ((10**6, "integrated"), (10**8, "removal")):
        work = n_weights * n_tokens**2
        monkeypatch.setattr("qkv.inspect.answers.attribution.MAX_WORK", work)
        assert trace.attribution(positions=0).method == method


@pytest.mark.parametrize("method", ["removal", "integrated", "gradient"])
def test_classes_are_explained_too(method):
    trace = make_trace("encoder")
    (scores,) = trace.attribution(method=method).scores.values()
    assert scores.shape == (1, 6) and float(scores.abs().min()) > 0
    with pytest.raises(UserError, match="method is one of 'removal', 'integrated', 'gradient'"):
        trace.attribution(method="other")


def test_attribution_sees_no_future():
    found = make_trace("decoder").attribution()
    scores = found.scores["target"]
    assert scores.shape == (5, 5)
    assert float(scores.triu(1).abs().max()) == 0 and float(scores.abs().min(dim=0).values[0]) > 0


def test_attribution_leaves_no_gradients_behind(trace):
    trace.attribution()
    assert all(parameter.grad is None for parameter in trace.model.parameters())


def test_attribution_refuses_outputs_that_are_not_there():
    with pytest.raises(UserError, match="no output 9"):
        make_trace("decoder").attribution(positions=9)


def test_attribution_follows_changes():
    trace = make_trace("decoder").silence("decoder.0.self_attention")
    with pytest.raises(UserError, match="trace one at a time"):
        trace.attribution()
    trace = Trace(trace.model, trace.inputs.repeat_row(0, 1), trace.edits)
    for layer in (1, 2):
        trace = trace.silence(f"decoder.{layer}.self_attention")
    scores = trace.attribution().scores["target"]  # nobody looks at anybody
    assert float((scores - torch.diag(scores.diag())).abs().max()) < 1e-6


def spans() -> Trace:
    trace = make_trace("encoder", head="token", n_labels=2)
    return Trace(trace.model, Inputs(source=side([2, 7, 3], [2, 4, 5, 6, 3]), output_kind="span"))


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
    read = Inputs(source=side([2, 4, 5, 3], [2, 7]), output_kind="class")
    found = Trace(trace.model, read).attribution(row=1, steps=2)
    assert found.positions == (0, 1) and found.scores["source"].shape == (2, 2)


def test_classes_by_themselves_have_an_entropy_each():
    trace = make_trace("encoder")
    each = Trace(trace.model, replace(trace.inputs, output_kind="classes", labels=None))
    even = each.change("logits", 0.0)
    (step,) = even.steps()
    assert step.entropy == pytest.approx(3 * torch.tensor(2.0).log().item(), rel=1e-5)


def test_inference_mode_does_not_get_in_the_way():
    trace = make_trace("decoder")
    expected = trace.attribution(0, steps=3).scores["target"]
    with torch.inference_mode():
        laid = Trace(trace.model, Inputs(target=side([2, 4, 5, 6, 7]), labels=trace.inputs.labels))
        inside = laid.attribution(0, steps=3).scores["target"]
    torch.testing.assert_close(inside, expected)
    torch.testing.assert_close(laid.attribution(0, steps=3).scores["target"], expected)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda t: t.drift("encoder"), "no stack 'encoder'"),
        (lambda t: t.rollout("nonsense"), "no stack 'nonsense'"),
        (lambda t: t.tokens("target", 2), "no row 2; this trace has 2"),
        (lambda t: t.steps(row=5), "no row 5"),
        (lambda t: t.steps(k=0), "k is 0"),
        (lambda t: t.lens(k=0), "k is 0"),
        (lambda t: t.attribution(output=99), "no output 99; there are 23"),
        (lambda t: t.attribution(output=-1), "no output -1"),
        (lambda t: t.change("decoder.output", 0.0, positions=[99]), "no token 99; it has 5"),
        (lambda t: patching_map(t, t.silence("decoder.output"), ["loss"]), "has no tokens"),
    ],
)
def test_mistakes_get_a_sentence(ask, sentence):
    with pytest.raises(UserError, match=sentence):
        ask(make_trace("decoder"))


def test_the_last_row_may_be_counted_from_the_end():
    trace = make_trace("decoder")
    assert trace.tokens("target", -1) == trace.tokens("target", 1)
    one, other = (trace.attribution(row=row, steps=2).scores["target"] for row in (-1, 1))
    assert torch.equal(one, other)
