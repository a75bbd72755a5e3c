"""What a trace says, drawn: the data stand in the axes, and pages hold every text, escaped."""

import io
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from qkv.inspect import Trace, lay, lay_labels
from qkv.inspect.fonts import visible
from qkv.inspect.steps import Candidate, Step
from qkv.inspect.views import (
    ABREAST,
    MOST,
    STEPS_HEAD,
    comparison_rows,
    draw_attribution,
    draw_drift,
    draw_lens,
    draw_steps,
    drift_fragment,
    last_outputs,
    lens_fragment,
    steps_rows,
    trace_fragment,
)
from tests.inspect.conftest import CPU, make_trace
from tests.inspect.test_maps import labels, panels

CHINESE = "我爱你他们是不在有这中大来上个国说要就出也得里后自以会家"


def named(ids):
    """Tokens as hard to draw as they come: Chinese, dollars, brackets, spaces."""
    return ["$x$ [b]" if id == 2 else "<eos>" if id == 3 else CHINESE[id] for id in ids]


def chinese(family: str, length: int = 6) -> Trace:
    """A trace of one row with so many tokens on each side."""
    trace = make_trace(family, max_length=256)
    ids = [2, *[4 + n % 19 for n in range(length - 1)]]
    side = lay([ids], 0, named, CPU)
    reading = replace(trace.reading, name=named, segments=None)
    if family != "encoder":
        reading = replace(reading, target=side, labels=lay_labels([[*ids[1:], 3]], CPU))
    if family != "decoder":
        reading = replace(reading, source=side)
    if family == "encoder":
        reading = replace(reading, labels=None, name=lambda ids: [f"<c{id}>" for id in ids])
    return Trace(trace.model, reading)


FAMILIES = ["encoder-decoder", "encoder", "decoder"]


@pytest.mark.parametrize(
    ("family", "length"), [("encoder-decoder", 6), ("encoder", 6), ("decoder", 60)]
)
def test_no_figure_warns_whatever_its_tokens(family: str, length: int) -> None:
    trace = chinese(family, length)
    figures = [
        draw_steps(trace.steps(3)),
        draw_lens(trace.lens(2)),
        draw_drift(trace.drift()),
        draw_attribution(trace.attribution([0])),
    ]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for figure in figures:
            figure.savefig(io.BytesIO(), format="png")
    assert not said


def test_no_figure_sprawls_however_long_the_text() -> None:
    trace = chinese("encoder-decoder", 200)
    figures = [
        draw_steps(trace.steps(3)),
        draw_lens(trace.lens(2)),
        draw_drift(trace.drift()),
        draw_attribution(trace.attribution([0])),
    ]
    for figure in figures:
        assert max(figure.get_size_inches()) < 45
    assert 40 <= len(labels(panels(figures[-1])[0].xaxis)) <= 80


def test_bars_are_probabilities_side_by_side() -> None:
    trace = chinese("decoder")
    steps = trace.steps(3)
    figure = draw_steps(steps, viewer_fonts=True)
    (axes,) = figure.axes
    widths = np.array([bar.get_width() for bar in axes.patches]).reshape(6, 3)
    expected = trace["probabilities"][0].topk(3).values
    np.testing.assert_allclose(widths, expected, rtol=1e-6)
    lefts = np.array([bar.get_x() for bar in axes.patches]).reshape(6, 3)
    np.testing.assert_allclose(lefts[:, 1:], widths.cumsum(1)[:, :-1], rtol=1e-6)
    assert labels(axes.yaxis)[:2] == ["0: after $x$␣[b]", f"1: after {CHINESE[4]}"]
    written = [text.get_text() for text in axes.texts]
    for step in steps:
        assert f"{step.entropy:.2f}" in written
    middles = {round(bar.get_y() + bar.get_height() / 2) for bar in axes.patches}
    assert middles == set(range(-5, 1))


def test_a_wide_bar_bears_its_name_and_a_narrow_one_does_not() -> None:
    step = Step(0, "a", (Candidate(1, "wide", 0.9), Candidate(2, "narrow", 0.05)), 0.4, None, None)
    written = [text.get_text() for text in draw_steps([step]).axes[0].texts]
    assert "wide" in written and "narrow" not in written


def test_of_very_many_outputs_the_last_are_drawn_and_the_others_counted() -> None:
    trace = chinese("decoder", 100)
    figure = draw_steps(trace.steps(2))
    assert len(figure.axes[0].patches) == 2 * MOST
    assert labels(figure.axes[0].yaxis)[0].startswith(f"{100 - MOST}: ")
    assert f"The last {MOST} of 100 steps" in figure.get_supxlabel()
    lens = trace.lens(2)
    (axes,) = panels(draw_lens(lens))[:1]
    np.testing.assert_allclose(axes.images[0].get_array(), lens.probabilities[:, -ABREAST:, 0])
    assert f"The last {ABREAST} of 100 outputs" in draw_lens(lens).get_supxlabel()
    assert lens_fragment(lens).count("<tr>") == 1 + len(lens.layers)
    assert lens_fragment(lens).count("<th>") == 1 + MOST
    assert "The last" not in draw_lens(chinese("decoder").lens()).get_supxlabel()
    cut = last_outputs(lens, 7)
    assert cut.tokens == lens.tokens[-7:]
    assert torch.equal(cut.entropy, lens.entropy[:, -7:])


def test_steps_as_rows() -> None:
    steps = chinese("decoder").steps(2)
    rows = steps_rows(steps)
    assert {len(row) for row in rows} == {len(STEPS_HEAD)}
    best, label = steps[0].candidates[0], steps[0].label
    assert label is not None
    assert rows[0][1] == "$x$␣[b]"
    assert rows[0][2].startswith(f"{visible(best.name)} {best.probability:.3f}  ")
    assert rows[0][3:] == (f"{steps[0].entropy:.3f}", f"{label.name} (rank {steps[0].rank})")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lens_is_drawn_with_its_best_candidates(family: str) -> None:
    lens = chinese(family).lens(2)
    figure = draw_lens(lens, viewer_fonts=True)
    axes = panels(figure)[0]
    np.testing.assert_allclose(axes.images[0].get_array(), lens.probabilities[:, :, 0])
    assert labels(axes.yaxis) == list(lens.layers)
    assert labels(axes.xaxis) == [visible(token) for token in lens.tokens]
    best = [visible(names[0])[:12] for layer in lens.names for names in layer]
    assert [text.get_text() for text in axes.texts] == best


def test_a_lens_as_a_page_begins_with_the_last_layer() -> None:
    lens = chinese("encoder").lens(3)
    html = lens_fragment(lens)
    rows = re.findall(r"<tr><td>([^<]+)</td>", html)
    assert rows == list(lens.layers)[::-1]
    assert "&lt;c" in html and "<c" not in html.replace("<caption", "")
    assert html.count(" 0.") + html.count(" 1.") == 3 * len(rows)


def test_drift_has_a_line_a_token_while_they_can_be_told_apart() -> None:
    drift = chinese("encoder-decoder").drift()
    figure = draw_drift(drift, viewer_fonts=True)
    for axes, values in zip(figure.axes, (drift.cosine, drift.distance), strict=True):
        drawn = np.array([line.get_ydata() for line in axes.lines])
        np.testing.assert_allclose(drawn, values.T)
        assert labels(axes.xaxis) == list(drift.layers)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(map(visible, drift.tokens))
    longer = draw_drift(chinese("decoder", 20).drift())
    assert not longer.legends
    drawn = np.array([line.get_ydata() for line in longer.axes[0].lines])
    np.testing.assert_allclose(drawn[-1], drawn[:-1].mean(axis=0))


def test_drift_as_a_page_names_layers_without_marking_their_spaces() -> None:
    drift = chinese("decoder").drift()
    html = drift_fragment(drift)
    assert html.count("<td") == drift.cosine.numel()
    assert "layer\u00a02" in html and "layer␣" not in html
    assert f"layer\u00a02 → $x$␣[b]: {drift.cosine[3, 0]:.4g}" in html


def test_attribution_has_a_panel_a_side_in_one_scale() -> None:
    found = chinese("encoder-decoder").attribution()
    figure = draw_attribution(found, viewer_fonts=True)
    assert figure.get_suptitle().endswith("by integrated gradients")
    drawn = panels(figure)[:2]
    assert [axes.get_title().split()[0] for axes in drawn] == ["source", "target"]
    limit = max(float(scores.abs().max()) for scores in found.scores.values())
    for axes, side in zip(drawn, found.scores, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), found.scores[side])
        assert axes.images[0].get_clim() == pytest.approx((-limit, limit))
        assert labels(axes.xaxis) == [visible(token) for token in found.tokens[side]]
        assert labels(axes.yaxis) == [visible(output) for output in found.outputs]
    html = found._repr_html_()
    assert html.count("<td") == 2 * 36
    assert html.count('class="minus') == sum(int((x < 0).sum()) for x in found.scores.values())


def test_a_trace_shows_every_quantity_before_anything_is_computed(trace: Trace) -> None:
    html = trace_fragment(trace)
    assert not trace._kept
    for key in trace:
        assert f"<td>{key}</td>" in html
    assert html.count("<tr>") == 1 + len(trace)
    assert "<td>B, H, " in html
    assert "<p>target: $x$ [b] 们 是 不 在 有</p>" in trace_fragment(chinese("decoder"))


def test_a_comparison_as_rows() -> None:
    trace = make_trace("decoder")
    rows = comparison_rows(trace.compare(trace.silence("decoder.0.self_attention"), "logits"))
    assert rows[0][0] == "logits"
    assert float(rows[0][1]) > float(rows[0][2]) > 0
    same = comparison_rows(trace.compare(make_trace("decoder"), "*.output"))
    assert {row[1:3] for row in same} == {("0", "0")}
