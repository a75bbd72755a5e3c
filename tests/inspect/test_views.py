"""What a trace answers, drawn: the data are in the axes, and tables hold every text, escaped."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.errors import UserError
from qkv.inspect import Side, Trace, pad_labels
from qkv.inspect.answers.answer import Answer, Question
from qkv.inspect.answers.attribution import Attribution
from qkv.inspect.answers.compare import compare_readings
from qkv.inspect.answers.positions import PositionTable
from qkv.inspect.answers.rollout import Rollout
from qkv.inspect.answers.steps import Candidate, Prediction, Steps
from qkv.inspect.draw.labels import visible
from qkv.inspect.views import VIEWS
from tests.inspect.conftest import CPU, make_trace
from tests.inspect.test_draw import draw_strictly, labels, panels, printed

CHINESE = "我爱你他们是不在有这中大来上个国说要就出也得里后自以会家"
FAMILIES = ["encoder-decoder", "encoder", "decoder"]


def named(ids):
    """Tokens as hard to draw as they come: Chinese, dollars, brackets, spaces."""
    return ["$x$ [b]" if id == 2 else "<eos>" if id == 3 else CHINESE[id] for id in ids]


def chinese(family: str, length: int = 6, **changes: int) -> Trace:
    """A trace of one row with so many tokens on each side."""
    trace = make_trace(family, max_length=256, **changes)
    ids = [2, *[4 + n % 19 for n in range(length - 1)]]
    side = Side.pad([ids], 0, named, CPU)
    inputs = replace(trace.inputs, name=named, segments=None)
    if family != "encoder":
        inputs = replace(inputs, target=side, labels=pad_labels([[*ids[1:], 3]], CPU))
    if family != "decoder":
        inputs = replace(inputs, source=side)
    if family == "encoder":
        inputs = replace(inputs, labels=None, name=lambda ids: [f"<c{id}>" for id in ids])
    return Trace(trace.model, inputs)


def answers(trace: Trace) -> dict[str, Answer]:
    """Every answer about a text that the model can give."""
    question = Question(model=trace.model, trace=trace, top=2, beams=2)
    texts = {name: view for name, view in VIEWS.items() if view.needs_text}
    return {n: view.answer(question) for n, view in texts.items() if not view.lack(question)}


@pytest.mark.usefixtures("no_chinese")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_shows_every_token_without_a_warning(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    every = answers(chinese(family, 4, n_encoder_layers=1, n_decoder_layers=1, n_heads=2))
    assert len(every) == (10 if family == "encoder" else 14)
    for name, answer in every.items():
        if family != "encoder-decoder":  # which has all of their views, and pictures are slow
            assert printed(answer.text(80), 80)
            continue
        draw_strictly(answer.draw())
        with warnings.catch_warnings(action="error"):
            html = answer._repr_html_()
        assert "<eos>" not in html and "<c0>" not in html, name
        drawn = set(html) & set(CHINESE) or "&lt;c0&gt;" in html
        assert drawn or name in ("flow", "roles"), name
        lines = "\n".join(printed(answer.text(80), 80))
        assert lines.strip()
        assert "\n".join(map(str.rstrip, str(answer).split("\n"))) == lines.rstrip()


def test_no_figure_sprawls_however_long_the_text() -> None:
    trace = chinese("encoder-decoder", 120)
    figures = [trace.steps(3).draw(), trace.lens(2).draw(), trace.drift().draw()]
    figures.append(trace.attribution([0]).draw())
    assert all(max(figure.get_size_inches()) < 45 for figure in figures)
    assert 40 <= len(labels(panels(figures[-1])[0].xaxis)) <= 80


def test_bars_are_probabilities_side_by_side() -> None:
    trace = chinese("decoder")
    steps = trace.steps(3)
    (axes,) = steps.draw().axes
    widths = np.array([bar.get_width() for bar in axes.patches]).reshape(6, 3)
    np.testing.assert_allclose(widths, trace["probabilities"][0].topk(3).values, rtol=1e-6)
    lefts = np.array([bar.get_x() for bar in axes.patches]).reshape(6, 3)
    np.testing.assert_allclose(lefts[:, 1:], widths.cumsum(1)[:, :-1], rtol=1e-6)
    assert labels(axes.yaxis)[:2] == ["0: after $x$␣[b]", f"1: after {CHINESE[4]}"]
    written = [text.get_text() for text in axes.texts]
    assert all(f"{step.entropy:.2f}" in written for step in steps)
    middles = {round(bar.get_y() + bar.get_height() / 2) for bar in axes.patches}
    assert middles == set(range(-5, 1))


def test_every_candidate_is_named_below_the_bars_and_a_wide_one_on_its_bar() -> None:
    candidates = (Candidate(1, "wide", 0.9), Candidate(2, "narrow", 0.05))
    figure = Steps([Prediction(0, "a", candidates, 0.4, None, None)]).draw()
    written = [text.get_text() for text in figure.axes[0].texts]
    assert "wide" in written and "narrow" not in written
    assert "wide 0.900" in written and "narrow 0.050" in written


def test_one_row_of_huge_scores_does_not_pale_the_others() -> None:
    scores = torch.tensor([[1.0, -2.0], [0.5, 1.5], [400.0, 1.0], [2.0, 0.0]])
    words = ("a", "b")
    found = Attribution(
        "removal", ("u", "v", "w", "x"), (0, 1, 2, 3), {"source": words}, {"source": scores}
    )
    figure = found.draw()
    assert panels(figure)[0].images[0].get_clim() == (-6, 6)  # 3 times the median of 2, 1.5, 400, 2
    assert "Colours end at 6; 1 cells are beyond, up to 400." in figure.get_supxlabel()
    assert any("up to 400" in line for line in printed(found.text(80)))
    assert "up to 400" in found._repr_html_()


def test_heads_of_one_layer_stand_side_by_side() -> None:
    drawn = panels(make_trace("encoder-decoder", n_heads=8).maps(layers=[1]).draw())
    assert [axes.get_subplotspec().colspan.start for axes in drawn] == list(range(8))
    html = make_trace("encoder-decoder", n_heads=8).maps(layers=[0, 1])._repr_html_()
    assert "grid-template-columns:repeat(8,max-content)" in html


def test_of_very_many_outputs_the_last_are_drawn_and_counted() -> None:
    trace = chinese("decoder", 100)
    figure = trace.steps(2).draw()
    assert len(figure.axes[0].patches) == 2 * 60
    assert labels(figure.axes[0].yaxis)[0].startswith("40: ")
    assert "The last 60 of 100 steps" in figure.get_supxlabel()
    lens = trace.lens(2)
    figure = lens.draw()
    image = panels(figure)[0].images[0].get_array()
    np.testing.assert_allclose(image, lens.probabilities[:, -24:, 0])
    assert "The last 24 of 100 outputs" in figure.get_supxlabel()
    assert lens._repr_html_().count("<th>") == 1 + 60
    assert "The last" not in chinese("decoder").lens().draw().get_supxlabel()
    assert printed(trace.steps(1).text(80))[0] == "The last 32 of 100 steps."


def test_steps_without_labels_have_no_column_of_them() -> None:
    labelled = chinese("decoder").steps(2)
    (table,) = Steps(replace(step, label=None, rank=None) for step in labelled).parts()
    assert table.head == ["step", "after", "candidates", "entropy"]
    assert all(len(row) == 4 for row in table.rows)
    assert labelled.parts()[0].head == [*table.head, "label"]


def test_steps_are_the_rows_of_a_table() -> None:
    steps = chinese("decoder").steps(2)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", steps._repr_html_())
    best, label = steps[0].candidates[0], steps[0].label
    assert label is not None and len(cells) == 5 * len(steps)
    assert cells[1] == "$x$␣[b]"
    assert cells[2].startswith(f"<span>{visible(best.name)} {best.probability:.3f}</span>  ")
    assert cells[3:5] == [f"{steps[0].entropy:.3f}", f"{label.name} (rank {steps[0].rank})"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lens_is_drawn_with_its_best_candidates(family: str) -> None:
    lens = chinese(family).lens(2)
    axes = panels(lens.draw())[0]
    np.testing.assert_allclose(axes.images[0].get_array(), lens.probabilities[:, :, 0])
    assert labels(axes.yaxis) == list(lens.layers)
    assert labels(axes.xaxis) == [visible(token) for token in lens.tokens]
    best = [visible(names[0])[:12] for layer in lens.candidates for names in layer]
    assert [text.get_text() for text in axes.texts] == best
    rows = re.findall(r"<tr><td[^>]*>([^<]+)</td>", lens._repr_html_())
    assert rows == list(lens.layers)[::-1]  # the last layer first


def test_drift_has_a_line_per_token_while_they_can_be_told_apart() -> None:
    drift = chinese("encoder-decoder").drift()
    figure = drift.draw()
    for axes, values in zip(figure.axes, (drift.cosine, drift.distance), strict=True):
        np.testing.assert_allclose([line.get_ydata() for line in axes.lines], values.T)
        assert labels(axes.xaxis) == list(drift.layers)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(map(visible, drift.tokens))
    assert any(line.startswith("layer\u00a00") for line in printed(drift.text(80)))
    longer = chinese("decoder", 20).drift().draw()
    (legend,) = longer.legends
    assert [text.get_text() for text in legend.get_texts()] == ["each token", "mean"]
    drawn = np.array([line.get_ydata() for line in longer.axes[0].lines])
    np.testing.assert_allclose(drawn[-1], drawn[:-1].mean(axis=0))


def test_a_token_in_a_legend_is_no_formula() -> None:
    trace = chinese("decoder", 4)
    target = replace(trace.inputs.target, names=(("$^$", "a", "$_$", "b"),))
    figure = Trace(trace.model, replace(trace.inputs, target=target)).drift().draw()
    draw_strictly(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["$^$", "a", "$_$", "b"]
    assert not any(text.get_parse_math() for text in legend.get_texts())


def test_an_attention_sink_is_named() -> None:
    shares = torch.tensor([[1.0, 0, 0], [0.95, 0.05, 0], [0.9, 0.05, 0.05]])
    words = ["The", "cat", "sat"]
    (sunk,) = Rollout(shares, words, words).parts()
    assert "'The' is an attention sink" in sunk.title
    even = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.3, 0.3, 0.4]])
    assert Rollout(even, words, words).sink is None


def test_drift_of_many_layers_and_far_tokens_stays_readable() -> None:
    few = chinese("encoder-decoder").drift()
    layers = tuple(f"layer {number}" for number in range(30))
    distance = torch.linspace(0, 11_000, 30)[:, None].expand(30, len(few.tokens))
    many = replace(few, layers=layers, cosine=distance / 11_000, distance=distance, step=distance)
    figure = many.draw()
    draw_strictly(figure)
    assert figure.axes[1].get_yscale() == "symlog" and figure.axes[0].get_yscale() == "linear"
    assert 6 <= len(labels(figure.axes[0].xaxis)) <= 12
    assert few.draw().axes[1].get_yscale() == "linear"


def test_attribution_has_a_panel_per_side_in_one_scale() -> None:
    found = chinese("encoder-decoder").attribution()
    figure = found.draw()
    assert figure.get_suptitle().endswith("by removing it")
    drawn = panels(figure)[:2]
    assert [axes.get_title() for axes in drawn] == ["source tokens", "target tokens"]
    limit = max(float(scores.abs().max()) for scores in found.scores.values())
    for axes, side in zip(drawn, found.scores, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), found.scores[side])
        assert axes.images[0].get_clim() == pytest.approx((-limit, limit))
        assert labels(axes.xaxis) == [visible(token) for token in found.tokens[side]]
        assert labels(axes.yaxis) == [visible(output) for output in found.outputs]
    html = found._repr_html_()
    assert html.count("<td") == 2 * 36
    assert html.count('class="minus') == sum(int((x < 0).sum()) for x in found.scores.values())


def test_a_trace_and_a_comparison_are_tables() -> None:
    trace = chinese("decoder")
    assert "<p>target: $x$ [b] 们 是 不 在 有</p>" in trace._repr_html_()
    changed = trace.compare(trace.silence("decoder.0.self_attention"), "logits")._repr_html_()
    key, largest, mean, _ = re.findall(r"<td[^>]*>(.*?)</td>", changed)
    assert key == "logits" and float(largest) > float(mean) > 0
    longer = trace.compare(chinese("decoder", 7), "logits")._repr_html_()
    assert "shapes differ</td><td>1 × 6 × 23</td><td>1 × 7 × 23</td>" in longer


KINDS = {
    "encoder-decoder": ["encoder.self_attention", "decoder.self_attention"],
    "encoder": ["encoder.self_attention"],
    "decoder": ["decoder.self_attention"],
}


def test_maps_hold_the_weights_of_every_layer_and_head(trace: Trace) -> None:
    family = trace.model.config.family
    crossed = ["decoder.cross_attention"] * (family == "encoder-decoder")
    for kind in [*KINDS[family], *crossed]:
        maps = trace.maps(kind)
        stack, _, name = kind.partition(".")
        for layer in maps.layers:
            whole = trace[f"{stack}.{layer}.{name}.weights"]
            assert torch.equal(maps.weights[layer], whole[0, :, : len(maps.rows)].float())
        torch.testing.assert_close(maps.weights.sum(-1), torch.ones(maps.weights.shape[:-1]))


def test_padding_is_cut_off_the_second_row() -> None:
    maps = make_trace("encoder-decoder").maps(row=1)
    assert (maps.rows, maps.columns) == (("#2", "#13"), ("#8", "#9", "#3"))
    assert maps.weights.shape == (3, 4, 2, 3)
    torch.testing.assert_close(maps.weights.sum(-1), torch.ones(3, 4, 2))


def test_the_mask_says_what_may_be_seen() -> None:
    maps = make_trace("decoder").maps()
    assert torch.equal(maps.allowed[0, 0], torch.ones(5, 5).tril().bool())
    assert make_trace("encoder").maps().allowed.all()


@pytest.mark.parametrize("heads", [[3, 1], [3, 2, 1, 0], [1, 1, 1, 1]])
def test_layers_and_heads_come_in_the_order_asked_for(heads: list[int]) -> None:
    trace = make_trace("encoder-decoder")
    whole, part = trace.maps(), trace.maps(layers=[2, 0], heads=heads)
    assert (part.layers, part.heads) == ((2, 0), tuple(heads))
    torch.testing.assert_close(part.weights, whole.weights[[2, 0]][:, heads])
    assert torch.equal(part.allowed, whole.allowed[[2, 0]])


def test_a_figure_of_attention_has_a_panel_per_head() -> None:
    maps = make_trace("encoder-decoder").maps(layers=[1, 2])
    figure = maps.draw()
    drawn = panels(figure)
    assert [axes.get_title() for axes in drawn] == [
        f"layer {layer}, head {head}" for layer in (1, 2) for head in range(4)
    ]
    for axes, weights in zip(drawn, maps.weights.flatten(0, 1), strict=True):
        assert torch.equal(torch.tensor(axes.images[0].get_array()).float(), weights)
    assert labels(drawn[4].yaxis) == list(maps.rows)
    assert labels(drawn[4].xaxis) == list(maps.columns)
    assert "Cross-attention" in figure.get_suptitle()


def test_one_head_alone_is_named_and_a_terminal_and_a_notebook_show_its_numbers() -> None:
    maps = make_trace("decoder").maps(layers=[2], heads=[1])
    (axes,) = panels(maps.draw())
    assert "layer 2, head 1" in axes.figure.get_suptitle()
    assert axes.images[0].get_array().mask.sum() == 10
    title, *lines = printed(maps.text(80))
    assert title.endswith("layer 2, head 1")
    assert re.findall(r"\d\.\d\d", lines[-2]) == [f"{x:.2f}" for x in maps.weights[0, 0, -1]]
    html = maps._repr_html_()
    assert (html.count("<td"), html.count('class="shut"')) == (25, 10)
    assert f"#7 → #2: {maps.weights[0, 0, 4, 0]:.4g}" in html


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"kind": "decoder.self_attention"}, r"no 'decoder.self_attention'; it has encoder"),
        ({"layers": [2]}, r"no layer 2; this model has 2, 0 to 1"),
        ({"heads": [4]}, r"no head 4; this model has 4, 0 to 3"),
    ],
)
def test_maps_that_are_not_there(asked: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_trace("encoder").maps(**asked)


def test_positions_are_drawn_around_zero_with_their_dot_products() -> None:
    angles = np.arange(12)[:, None] / 10000 ** (np.arange(0, 8, 2) / 8)
    table = 3 * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    positions = PositionTable(torch.tensor(table))
    products = positions.numbers()["dot_products"]
    for distance in range(12):  # of sinusoids they depend on the distance alone
        np.testing.assert_allclose(np.diag(products, distance), products[0][distance], atol=1e-9)
    left, right = panels(positions.draw())
    np.testing.assert_array_equal(left.images[0].get_array(), table)
    np.testing.assert_allclose(right.images[0].get_array(), products)
    assert left.images[0].get_clim() == (-np.abs(table).max(), np.abs(table).max())
    assert (left.get_xlabel(), right.get_xlabel()) == ("dimension", "position")
    assert printed(positions.text(80))[0] == "cosines of the first 12 positions"


def test_a_view_is_one_file_and_one_line_of_the_table() -> None:
    files = {path.stem for path in Path("src/qkv/inspect/answers").glob("*.py")}
    modules = {view.answer.__module__.rpartition(".")[2] for view in VIEWS.values()}
    assert len(modules) == len(VIEWS) and modules <= files


def test_an_encoder_predicts_at_a_token_and_a_decoder_after_it() -> None:
    trace = make_trace("encoder", head="masked")
    at = Trace(trace.model, replace(trace.inputs, labels=None)).steps(1)
    after = make_trace("decoder").steps(1)
    assert printed(at.text(80))[0].split()[:2] == ["step", "at"]
    assert printed(after.text(80))[0].split()[:2] == ["step", "after"]


def test_two_translators_are_compared_by_what_they_predict() -> None:
    trace = make_trace("encoder-decoder")
    found = compare_readings(trace, trace.silence("decoder.0"), ("$^$", "without"))
    draw_strictly(found.draw())  # a name with two dollars is no formula
    assert found.readings[0].tokens == tuple(trace.tokens("target"))
    assert all(reading.predictions for reading in found.readings)


def test_of_models_alike_a_figure_shows_how_far_each_layer_has_moved() -> None:
    before, after = make_trace("encoder-decoder"), make_trace("encoder-decoder")
    with torch.no_grad():
        after.model.decoder.blocks[1].feed_forward.outer.weight.mul_(3)
    found = compare_readings(before, after, ("before", "after"))
    figure = found.draw()
    draw_strictly(figure)
    (moved,) = [axes for axes in figure.axes if axes.lines]
    lines = {line.get_label(): line.get_ydata() for line in moved.lines}
    assert [len(line) for line in lines.values()] == [2, 3, 2, 3, 3]
    assert lines["encoder: feed-forward"] == pytest.approx([1, 1])
    first, changed, last = lines["decoder: feed-forward"]
    assert first == pytest.approx(1) and changed < 0.999 and last < 0.999
    other = make_trace("decoder")
    plain = compare_readings(before, other, ("one", "two")).draw()
    assert not any(axes.lines for axes in plain.axes)
