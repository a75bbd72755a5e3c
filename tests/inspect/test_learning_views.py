"""Views that write the formulas out: every number equals the reference, computed once more."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import UserError
from qkv.inspect import Inputs, Trace
from qkv.inspect.answers.answer import Question, token_position
from qkv.inspect.answers.compare import compare_readings
from qkv.inspect.answers.contributions import contributions
from qkv.inspect.answers.hand import Hand, hand
from qkv.inspect.answers.mask import masks
from qkv.inspect.answers.neurons import neurons
from qkv.inspect.answers.positions import PositionTable, RotaryAngles
from qkv.inspect.answers.roles import roles
from qkv.inspect.answers.shift import shift
from qkv.inspect.answers.word import find_word, word_in_context
from qkv.inspect.views import VIEWS
from qkv.model.positions.rotary import Rotary, rates
from tests.inspect.conftest import CONFIGS, INPUTS, make_trace, passes_of, side
from tests.inspect.reference import Reference
from tests.inspect.test_draw import draw_strictly, printed


def reference(trace: Trace) -> Reference:
    return Reference(trace.model.config, trace.model.state_dict(), trace.inputs)


def assert_close(given: Tensor | None, expected: Tensor) -> None:
    assert given is not None
    torch.testing.assert_close(given.double(), expected.double(), atol=2e-5, rtol=1e-4)


def value(found: Hand, name: str, number: int = 0) -> Tensor | None:
    return [line.value for line in found.lines if line.name == name][number]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("encoder-decoder", "encoder.self_attention"),
        ("encoder-decoder", "decoder.cross_attention"),
        ("encoder", "encoder.self_attention"),
        ("decoder", "decoder.self_attention"),
    ],
)
def test_every_number_by_hand_is_the_references(family: str, kind: str) -> None:
    trace = make_trace(family)
    layer, head, at = 1, 3, 2
    found, true = hand(trace, kind, layer, head, at), reference(trace).found
    stack, _, attention = kind.partition(".")
    key = f"{stack}.{layer}.{attention}"
    group = head * true[f"{key}.key"].shape[1] // 4
    q, k = true[f"{key}.query"][0, head, at], true[f"{key}.key"][0, group]
    products = k @ q
    scores = true[f"{key}.scores"][0, head, at]
    assert_close(torch.tensor([row.product for row in found.keys]), products)
    assert_close(torch.tensor([row.scaled for row in found.keys]), products / math.sqrt(4))
    assert [row.mask for row in found.keys] == [0.0 if s.isfinite() else -math.inf for s in scores]
    weights = true[f"{key}.weights"][0, head, at]
    assert_close(torch.tensor([row.weight for row in found.keys]), weights)
    assert_close(value(found, "query"), q)
    assert_close(value(found, "weighted values"), true[f"{key}.heads"][0, head, at])
    assert_close(value(found, "all heads together"), true[f"{key}.output"][0, at])
    last = true[f"{stack}.{layer}.feed_forward.residual"][0, at]
    if family == "decoder":  # pre-norm: the last sum is the stream
        assert_close(value(found, "residual connection", 1), last)
        before = true[f"{stack}.0.feed_forward.residual"][0, at]
        weight = trace.model.decoder.blocks[layer].self_attention_residual.norm.weight
        rms = (before.pow(2).mean() + trace.model.config.norm_epsilon).sqrt()
        assert_close(value(found, "RMSNorm"), before / rms * weight.detach().double())
    else:
        assert_close(value(found, "LayerNorm", -1), last)
        assert_close(value(found, "LayerNorm"), true[f"{key}.residual"][0, at])
    assert_close(value(found, "inner layer"), true[f"{stack}.{layer}.feed_forward.hidden"][0, at])
    assert_close(value(found, "feed-forward"), true[f"{stack}.{layer}.feed_forward.output"][0, at])


def test_the_numbers_by_hand_stand_in_the_terminal_and_the_figure() -> None:
    found = hand(make_trace("decoder"), "decoder.self_attention", 0, 1, 2)
    lines = " ".join(printed(found.text(80)))
    assert "−∞" in lines and f"{found.keys[0].weight:.3f}" in lines
    draw_strictly(found.draw())


def test_masks_hide_padding_and_what_comes_after_and_other_texts() -> None:
    found = {matrix.name: matrix for matrix in masks(make_trace("encoder-decoder")).matrices}
    padded = found["self-attention of the encoder, text 2: padding is hidden"]
    assert padded.columns == ("#8", "#9", "#3", "<pad>", "<pad>")
    assert padded.allowed.tolist() == [[True, True, True, False, False]] * 5
    causal = found["self-attention of the decoder, text 1: causal"]
    assert causal.allowed.tolist() == [[j <= i for j in range(4)] for i in range(4)]
    assert causal.additive[0].tolist() == [0.0, -math.inf, -math.inf, -math.inf]
    packed = found["self-attention of the decoder, texts packed end to end"]
    owner = [0, 0, 0, 0, 1, 1]
    expected = [[j <= i and owner[i] == owner[j] for j in range(6)] for i in range(6)]
    assert packed.allowed.tolist() == expected
    across = found["cross-attention, texts packed end to end"]
    source = [0] * 5 + [1] * 3
    assert across.allowed.tolist() == [[x == y for y in source] for x in owner]


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("row", [0, 1])
def test_a_label_costs_minus_its_log_probability(family: str, row: int) -> None:
    trace = make_trace(family)
    found, probable = shift(trace, row), reference(trace).found["probabilities"][row]
    costs = []
    for x, label in zip(found.positions, INPUTS[family].labels[row].tolist(), strict=False):
        if label < 0:
            assert x.label is None and x.cost is None
            continue
        costs.append(-math.log(float(probable[x.position, label])))
        assert (x.label, x.cost) == (f"#{label}", pytest.approx(costs[-1], rel=1e-4))
    assert found.mean == pytest.approx(sum(costs) / len(costs), rel=1e-4)


def through_norm(trace: Trace, norm, vector: Tensor, total: Tensor) -> Tensor:
    """A vector after a norm whose deviation is that of the whole sum."""
    gain, epsilon = norm.weight.detach().double(), trace.model.config.norm_epsilon
    if trace.model.config.norm == "rms":
        return gain * vector / (total.pow(2).mean() + epsilon).sqrt()
    deviation = ((total - total.mean()).pow(2).mean() + epsilon).sqrt()
    return gain * (vector - vector.mean()) / deviation


def test_contributions_of_a_pre_norm_decoder_are_read_by_the_last_norm() -> None:
    trace = make_trace("decoder")
    found, true = contributions(trace, 3), reference(trace).found
    total = true["decoder.2.feed_forward.residual"][0, 3]
    output = trace.model.output.projection.weight[7].detach().double()
    assert found.output == "#7"
    for layer in range(3):
        matrix = trace.model.decoder.blocks[layer].self_attention.output.weight.detach().double()
        for head in range(4):
            value = true[f"decoder.{layer}.self_attention.heads"][0, head, 3]
            vector = matrix[:, 4 * head : 4 * head + 4] @ value
            expected = through_norm(trace, trace.model.decoder.norm, vector, total) @ output
            assert_close(found.heads["self_attention"][layer, head], expected)
        fed = true[f"decoder.{layer}.feed_forward.output"][0, 3]
        expected = through_norm(trace, trace.model.decoder.norm, fed, total) @ output
        assert_close(found.feed_forward[layer], expected)


def test_contributions_of_a_post_norm_decoder_go_through_every_norm() -> None:
    trace = make_trace("encoder-decoder")
    found, true = contributions(trace, 2), reference(trace).found
    blocks, at = trace.model.decoder.blocks, 2
    matrix = blocks[1].cross_attention.output.weight.detach().double()
    vector = matrix[:, 8:12] @ true["decoder.1.cross_attention.heads"][0, 2, at]
    before = true["decoder.1.self_attention.residual"][0, at]
    way = [(1, "cross_attention"), (1, "feed_forward")]
    way += [(2, name) for name in ("self_attention", "cross_attention", "feed_forward")]
    for layer, name in way:
        total = before + true[f"decoder.{layer}.{name}.output"][0, at]
        norm = getattr(blocks[layer], f"{name}_residual").norm
        vector = through_norm(trace, norm, vector, total)
        before = true[f"decoder.{layer}.{name}.residual"][0, at]
    output = trace.model.output.projection.weight[12].detach().double()
    assert_close(found.heads["cross_attention"][1, 2], vector @ output)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("changes", [{}, {"norm_position": "both"}, {"norm": "rms_plus_one"}])
def test_contributions_sum_up_to_the_logit(family: str, changes: dict) -> None:
    trace = make_trace(family, **changes)
    found = contributions(trace, 1)
    assert found.logit == pytest.approx(float(trace["logits"][0, 1].detach()[found_id(found)]))
    assert found.total == pytest.approx(found.logit, abs=1e-6)
    assert abs(found.others["remainder (rounding, changes)"]) < 1e-4
    draw_strictly(found.draw())


def found_id(found) -> int:
    return int(found.output.removeprefix("#"))


@pytest.mark.parametrize("norm", ["rms", "rms_plus_one"])
def test_neurons_promote_the_words_of_their_output_row(norm: str) -> None:
    trace = make_trace("decoder", norm=norm)
    found, true = neurons(trace, 1, top=2), reference(trace).found
    hidden = true["decoder.1.feed_forward.hidden"][0]
    matrix = trace.model.decoder.blocks[1].feed_forward.outer.weight.detach().double()
    gain = trace.model.decoder.norm.weight + (norm == "rms_plus_one")
    table = trace.model.output.projection.weight * gain
    effects = hidden.abs() * matrix.norm(dim=0)
    first = found.neurons[0]  # of the first token, the one that adds most to it
    assert first.number == int(effects[0].argmax()) and first.token == trace.tokens("target")[0]
    assert_close(found.activations[:, 0], hidden[:, first.number])
    moved = table.detach().double() @ matrix[:, first.number] * first.activation
    (name, value), *_ = first.words
    assert name == f"#{int(moved.argmax())}" and value == pytest.approx(
        float(moved.max()), rel=1e-3
    )


def test_a_token_with_huge_activations_does_not_hide_the_neurons_of_the_others() -> None:
    trace = make_trace("decoder")
    key, tokens = "decoder.1.feed_forward.hidden", trace.tokens("target")
    huge = trace.change(key, lambda hidden: hidden * 1000, positions=[0])
    assert {x.token for x in neurons(huge, 1).neurons} == {*tokens}
    places = [tokens.index(x.token) for x in neurons(huge, 1).neurons]
    assert places == sorted(places)


def test_a_few_large_cells_do_not_pale_a_table_of_positions() -> None:
    table = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)) * 0.1
    table[0, :3] = 20.0
    figure = PositionTable(table).draw()
    left, right = (axes.images[0].get_clim()[1] for axes in figure.axes[:2])
    assert left < 1 and right < 5
    notes = " ".join(figure.get_supxlabel().split())
    assert "←: Colours end at" in notes and "→: Colours end at" in notes
    plain = PositionTable(table[1:]).draw()
    assert plain.axes[0].images[0].get_clim()[1] == pytest.approx(float(table[1:].abs().max()))
    assert "←" not in plain.get_supxlabel()


def test_heads_that_copy_by_rule_get_their_role() -> None:
    def rule(step: int):
        """Weights of heads that look at the token before, and at `step` tokens before."""

        def change(weights: Tensor) -> Tensor:
            new, count = torch.zeros_like(weights), weights.shape[-1]
            half = (count - 1) // 2
            for query in range(count):
                new[:, 0, query, max(0, query - 1)] = 1
                new[:, 1, query, query - half + 1 if query > half else 0] = 1  # induction
                new[:, 2, query, query - half if query > half else 0] = 1  # duplicate
                new[:, 3, query, 0] = 1
            return new

        return change

    trace = make_trace("decoder", max_length=64)
    found = roles(trace.change("decoder.1.self_attention.weights", rule(1)))
    best = {x.role: divmod(int(x.scores.argmax()), 4) for x in found.maps}
    assert best == {"previous": (1, 0), "induction": (1, 1), "duplicate": (1, 2), "sink": (1, 3)}
    assert all(float(x.scores.max()) == 1 for x in found.maps)
    draw_strictly(found.draw())


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
def test_roles_of_all_layers_are_read_from_one_pass(family: str) -> None:
    trace = make_trace(family, max_length=64)
    passes = passes_of(trace)
    roles(trace)
    # The text too is read for cross-attention: its weights, and what each token's removal costs.
    assert len(passes) == (1 if family != "encoder-decoder" else 5)


def test_alignment_is_the_weight_on_the_token_whose_removal_costs_most() -> None:
    trace = make_trace("encoder-decoder", max_length=64)
    (found,) = [x for x in roles(trace).maps if x.role == "alignment"]
    removed = trace.attribution(method="removal").scores["source"]
    expected = torch.zeros(3, 4)
    for layer in range(3):
        weights = trace[f"decoder.{layer}.cross_attention.weights"][0]
        for output in range(4):
            expected[layer] += weights[:, output, int(removed[output].argmax())] / 4
    torch.testing.assert_close(found.scores, expected, atol=1e-5, rtol=1e-4)


def test_one_word_is_compared_between_texts() -> None:
    trace = make_trace("encoder-decoder")
    two = side([4, 5, 6], [7, 5, 3])
    trace = Trace(trace.model, Inputs(source=two, target=side([2], [2])))
    found = word_in_context(trace, "#5")
    assert found.tokens == ((1,), (1,)) and found.layers == ("input", "layer 0", "layer 1")
    for number, key in enumerate(["source.input", "encoder.0.feed_forward.residual"]):
        a, b = trace[key][0, 1].double(), trace[key][1, 1].double()
        assert_close(found.cosine[number, 0, 1], a @ b / (a.norm() * b.norm()))
    draw_strictly(found.draw())
    with pytest.raises(UserError, match="has no '#9'; give texts that all have it"):
        word_in_context(trace, "#9")


def test_a_words_tokens_are_found_through_pieces_and_parts_of_characters() -> None:
    assert find_word(["[CLS]", "play", "##ing", "bank", "[SEP]"], "Playing") == [1, 2]
    assert find_word(["▁the", "▁ban", "k"], "bank") == [1, 2]
    assert find_word(["我\u00a01/2", "我\u00a02/2", "爱"], "我爱") == [0, 2]


def test_the_product_of_turned_vectors_depends_on_their_distance() -> None:
    config = replace(CONFIGS["decoder"], n_heads=2)
    found = RotaryAngles(rates(config), 12)
    scheme, ones = Rotary(config), torch.ones(1, 1, 1, 8)
    at = [scheme.turn(ones, scheme.angles(torch.tensor([position]))) for position in range(12)]
    for m in range(12):
        for n in range(m + 1):
            product = float((at[m] * at[n]).sum()) / 8
            assert product == pytest.approx(float(found.products[m - n]), abs=1e-5)
    draw_strictly(found.draw())


@pytest.mark.parametrize(
    ("asked", "position"), [("[MASK]", 2), ("<mask>", 2), ("CUP", 1), ("-1", 3), ("", 0)]
)
def test_a_token_is_found_by_its_name_however_a_gap_is_written(asked: str, position: int) -> None:
    names = ["<bos>", "▁cup", "<mask>", "."]
    assert token_position(Question(token=asked), names, 0) == position
    assert token_position(Question(token="<mask>"), ["[CLS]", "[MASK]"], 0) == 1


def test_an_encoder_beside_a_decoder_sees_more() -> None:
    encoder = make_trace("encoder", head="masked")
    encoder = Trace(encoder.model, Inputs(source=side([4, 5, 6])))
    decoder = Trace(make_trace("decoder").model, Inputs(target=side([4, 5, 6])))
    found = compare_readings(encoder, decoder, ("bert", "gpt"), 2)
    left, right = found.readings
    assert left.allowed.all() and right.allowed.tolist() == torch.ones(3, 3).tril().bool().tolist()
    best = decoder["probabilities"][0, 1].argmax()
    assert right.predictions[1][0][0] == f"#{int(best)}" and found.moved == ()
    tuned = decoder.silence("decoder.1.feed_forward")
    moved = compare_readings(decoder, tuned, ("a", "b")).moved
    first = next(key for key, largest, _ in moved if largest > 0)
    assert first == "decoder.1.feed_forward.residual"
    draw_strictly(found.draw())


@pytest.mark.parametrize(
    ("view", "family", "given", "sentence"),
    [
        ("hand", "decoder", {"token": "9"}, "no token 9; the text has 5"),
        ("hand", "decoder", {"token": "love"}, "no token 'love'; it has #2 #4 #5 #6 #7"),
        ("hand", "decoder", {"layers": (7,)}, "no layer 7; this model has 3"),
        ("hand", "decoder", {"attention": "cross"}, "no cross attention; it has masked"),
        ("neurons", "decoder", {"layers": (7,)}, "no layer 7"),
        ("contributions", "decoder", {"token": "-9"}, "no token -9"),
    ],
)
def test_what_is_not_there_is_named(view: str, family: str, given: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        VIEWS[view].lack(Question(trace=make_trace(family), **given))


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        ("shift", "nothing is shifted"),
        ("contributions", "no W_out"),
        ("neurons", "says labels and no words"),
        ("word", "give it with --word"),
        ("compare", "needs a second model"),
    ],
)
def test_an_encoder_that_lacks_a_view_says_why(view: str, sentence: str) -> None:
    assert sentence in str(VIEWS[view].lack(Question(trace=make_trace("encoder"))))


@pytest.mark.parametrize(
    ("ask", "count"),
    [
        (lambda trace: trace.rollout(), 1),
        (lambda trace: contributions(trace, 1), 2),  # the logits by themselves
        (lambda trace: word_in_context(trace, trace.tokens("target")[0]), 1),
    ],
)
def test_questions_about_all_layers_need_one_pass(ask: Any, count: int) -> None:
    trace = make_trace("decoder", max_length=64)
    passes = passes_of(trace)
    ask(trace)
    assert len(passes) == count


def test_each_formula_by_hand_bears_the_symbols_of_its_own_sublayer() -> None:
    found = hand(make_trace("encoder-decoder"), "decoder.self_attention", 0, 0, 1)
    said = [(line.name, line.formula) for line in found.lines]
    assert ("what comes in", "H") in said and ("after cross-attention", "H⁗") in said
    adds = [formula for name, formula in said if name == "residual connection"]
    assert adds == ["H + H′", "H⁗ + H⁗′"]
    means = [formula for name, formula in said if name == "mean"]
    assert [formula.partition(",")[0] for formula in means] == ["x = H + H′", "x = H⁗ + H⁗′"]
    assert [formula for name, formula in said if name == "LayerNorm"] == [
        "H″ = γ·x̂ + β",
        "H⁽ˡ⁾ = γ·x̂ + β",
    ]


class UnitNorm(nn.Module):
    """A norm that somebody adds: x / |x| · γ."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True) * self.weight


def test_a_norm_of_ones_own_is_traced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.model.norm.RMSNormPlusOne", UnitNorm)  # what build_norm ends with
    trace = make_trace("encoder-decoder", norm="unit")
    assert trace.formula("encoder.0.self_attention.residual") == "H″ = unit(H + H′)"
    assert not trace.names("*.normalised")
    total, gamma = (trace[f"encoder.0.self_attention.{key}"] for key in ("sum", "norm.gamma"))
    expected = total / total.norm(dim=-1, keepdim=True) * gamma
    torch.testing.assert_close(trace["encoder.0.self_attention.residual"], expected)
    for view in ("hand", "contributions"):
        assert "of the kind 'unit'" in str(VIEWS[view].lack(Question(trace=trace)))
