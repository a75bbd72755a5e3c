"""The flow of a pass: every quantity with its shape, and the arrows that pass others by."""

from __future__ import annotations

import re

import pytest
from matplotlib.patches import FancyArrowPatch
from rich.cells import cell_len

from qkv.inspect import Trace
from qkv.inspect.answers.flow import Flow, Stage, flow
from qkv.inspect.draw.labels import wrapped_formula
from qkv.inspect.draw.style import ATTENTION, DARK, KEY, QUERY, VALUE
from tests.inspect.conftest import make_trace
from tests.inspect.test_draw import draw_strictly, printed
from tests.inspect.test_trace import LINES


@pytest.fixture(scope="module")
def whole() -> Flow:
    """Of an encoder with two layers and a decoder with three."""
    return flow(make_trace("encoder-decoder"))


def keys(stages: list[Stage], pairs: list[tuple[int, int]]) -> list[tuple[str, str]]:
    return [(stages[start].key, stages[end].key) for start, end in pairs]


def test_every_quantity_is_a_stage_with_its_own_shape(trace: Trace) -> None:
    stages = flow(trace)
    main = [key for key in trace.names("*") if not trace.find(key).is_detail]
    assert sorted(stage.key for stage in stages) == sorted(main)
    trace.many(main)
    for stage in stages:
        assert stage.shape == trace.shape(stage.key) == tuple(trace[stage.key].shape)
        assert stage.formula == trace.formula(stage.key)
        assert len(stage.axes) == len(stage.shape)


def test_the_order_is_that_of_the_formulas_but_labels_wait_for_the_loss(whole: Flow) -> None:
    order = [stage.key for stage in whole]
    assert order[-2:] == ["target.labels", "loss"]
    trace = make_trace("encoder-decoder")
    main = [key for key in trace.names("*") if not trace.find(key).is_detail]
    assert order[:-2] == [key for key in main if key not in order[-2:]]


@pytest.mark.parametrize(
    ("key", "lane", "layer"),
    [
        ("source.input", "encoder", None),
        ("encoder.1.feed_forward.output", "encoder", 1),
        ("target.tokens", "decoder", None),
        ("decoder.2.cross_attention.key", "decoder", 2),
        ("decoder.output", "decoder", None),
        ("target.labels", "output", None),
        ("loss", "output", None),
    ],
)
def test_lanes_and_layers(whole: Flow, key: str, lane: str, layer: int | None) -> None:
    (stage,) = [stage for stage in whole if stage.key == key]
    assert (stage.lane, stage.layer) == (lane, layer)
    if key.endswith("cross_attention.key"):
        assert (stage.name, stage.letters) == ("cross-attention: keys", "(B, H, S, D/H)")


@pytest.mark.parametrize(
    ("family", "position", "name"),
    [
        ("encoder-decoder", "post", "residual and norm"),
        ("decoder", "pre", "residual (norm before)"),
        ("decoder", "both", "residual (two norms)"),
    ],
)
def test_a_residual_says_where_the_norm_is(family: str, position: str, name: str) -> None:
    stages = flow(make_trace(family, norm_position=position))
    names = {stage.key: stage.name for stage in stages}
    assert names["decoder.0.feed_forward.residual"] == f"feed-forward: {name}"
    assert ("decoder.0.feed_forward.norm" in names) == (position != "post")


def test_symbols_have_the_notes_primes() -> None:
    trace = make_trace("encoder-decoder")
    assert trace.formula("encoder.0.H″") == "H″ = LayerNorm(H + H′)"
    assert trace.formula("encoder.0.H‴").startswith("H‴ = FFN(H″) = ")
    assert trace.formula("encoder.0.H") == "H⁽ˡ⁾ = LayerNorm(H″ + H‴)"
    assert trace.formula("decoder.0.H‴").startswith("H‴ = Concat(")
    assert trace.formula("decoder.0.H⁗") == "H⁗ = LayerNorm(H″ + H‴)"
    assert trace.formula("decoder.0.H'''''").startswith("H⁗′ = FFN(H⁗) = ")
    assert trace.formula("decoder.0.cross_attention.Q") == "Q = H″·W_Q + b_Q"


def test_one_layer_of_each_lane_is_shown_for_all(whole: Flow) -> None:
    assert {stage.layer for stage in whole.shown} == {None, 0}
    assert (whole.n_layers("encoder"), whole.n_layers("decoder")) == (2, 3)


def test_a_residual_adds_what_its_sublayer_was_given(whole: Flow) -> None:
    arrows = keys(whole, whole.skips())
    assert arrows[:2] == [
        ("source.input", "encoder.0.self_attention.residual"),
        ("encoder.0.self_attention.residual", "encoder.0.feed_forward.residual"),
    ]
    assert ("decoder.0.self_attention.residual", "decoder.0.cross_attention.residual") in arrows
    assert len(arrows) == 2 * 2 + 3 * 3


def sources(stages: Flow, key: str) -> list[str]:
    """What a stage is computed from."""
    return [start for start, end in keys(stages, stages.feeds()) if end == key]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("source.tokens", []),
        ("source.embedding", ["source.tokens"]),
        ("encoder.0.self_attention.query", ["source.input"]),
        ("encoder.0.self_attention.key", ["source.input"]),
        ("encoder.0.self_attention.value", ["source.input"]),
        (
            "encoder.0.self_attention.products",
            ["encoder.0.self_attention.query", "encoder.0.self_attention.key"],
        ),
        ("encoder.0.self_attention.mask", []),
        (
            "encoder.0.self_attention.scores",
            ["encoder.0.self_attention.products", "encoder.0.self_attention.mask"],
        ),
        ("source.positions", []),
        ("source.input", ["source.embedding", "source.positions"]),
        ("encoder.0.self_attention.weights", ["encoder.0.self_attention.scores"]),
        (
            "encoder.0.self_attention.heads",
            ["encoder.0.self_attention.weights", "encoder.0.self_attention.value"],
        ),
        ("encoder.1.self_attention.value", ["encoder.0.feed_forward.residual"]),
        ("decoder.1.cross_attention.query", ["decoder.1.self_attention.residual"]),
        ("decoder.1.cross_attention.key", ["encoder.output"]),
        ("decoder.1.cross_attention.value", ["encoder.output"]),
        ("decoder.1.feed_forward.hidden", ["decoder.1.cross_attention.residual"]),
        ("logits", ["decoder.output"]),
        ("target.labels", []),
        ("loss", ["probabilities", "target.labels"]),
    ],
)
def test_arrows_lead_from_what_a_stage_is_computed_from(
    whole: Flow, key: str, expected: list[str]
) -> None:
    assert sources(whole, key) == expected


def test_parallel_sublayers_read_the_block_s_input() -> None:
    stages = flow(make_trace("decoder", parallel=True))
    for sublayer, first in (("feed_forward", "hidden"), ("self_attention", "key")):
        norm = f"decoder.1.{sublayer}.norm"
        assert sources(stages, f"decoder.1.{sublayer}.{first}") == [norm]
        assert sources(stages, norm) == ["decoder.0.feed_forward.residual"]


def test_a_bias_by_position_joins_at_the_scores() -> None:
    at = "encoder.0.self_attention"
    stages = flow(make_trace("encoder", positions="disentangled", relative_buckets=4))
    assert sources(stages, f"{at}.scores") == [f"{at}.products", f"{at}.bias", f"{at}.mask"]
    assert sources(stages, f"{at}.bias") == [f"{at}.query", f"{at}.key"]
    stages = flow(make_trace("encoder", positions="alibi"))
    assert sources(stages, f"{at}.bias") == []


def test_the_chart_has_each_stage_its_formula_shape_and_arrows(whole: Flow) -> None:
    figure = whole.draw()
    draw_strictly(figure)
    (axes,) = figure.axes
    texts, shown = [text.get_text() for text in axes.texts], whole.shown
    for stage in shown:
        name = stage.name if stage.name in texts else stage.name.rpartition(": ")[2]
        size = {stage.letters, str(stage.shape)} if stage.shape else {"a number"}
        assert {name, *size} <= {*texts}
        formula = stage.localized().formula
        starts = [text for text in texts if text and formula.startswith(text)]
        rests = [formula.removeprefix(start) for start in starts]  # in narrow boxes
        assert {"", *texts} & {*rests}
    assert "× 2" in texts and "× 3" in texts
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == len(shown.feeds()) + len(shown.skips())
    where = {text.get_text(): text.get_position() for text in axes.texts}
    source, target = where["encoder output"], where["decoder output"]
    assert source[0] < target[0] == where["logits"][0] and where["logits"][1] < target[1]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_is_readable_in_its_width(trace: Trace, width: int) -> None:
    stages = flow(trace)
    lines = printed(stages.text(width), width)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) < 2 * len(stages)  # no formula is squeezed to a letter a line
    for stage in stages.shown:
        shape = f"{stage.letters} = {stage.shape}" if stage.shape else "a number"
        name = stage.name.rpartition(": ")[2]
        assert any(name in line and shape in line for line in lines), stage
        assert width < 120 or any(stage.key in line for line in lines), stage
    assert any("coder.0." in line for line in lines) == (width >= 120)
    assert [line for line in lines if "layer ×" in line]


def test_the_page_has_every_stage_and_a_frame_per_layer(whole: Flow) -> None:
    html = whole._repr_html_()
    assert html.count('class="step ') == len(whole.shown)
    assert html.count('class="layer"') == 2
    assert html.count("<div") == html.count("</div>")


SYMBOL = re.compile(r"\w+")


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("cells", [12, 20, 24])
def test_line_breaks_split_no_symbol_of_a_formula(line: str, cells: int) -> None:
    family, choices = LINES[line]
    for stage in flow(make_trace(family, **choices)).shown:
        lines = wrapped_formula(stage.formula, cells).split("\n")
        assert "".join(lines).replace(" ", "") == stage.formula.replace(" ", "")
        symbols = [symbol for line in lines for symbol in SYMBOL.findall(line)]
        assert symbols == SYMBOL.findall(stage.formula)


def test_the_table_of_a_gated_layer_keeps_its_symbols_whole() -> None:
    family, choices = LINES["Llama"]
    lines = printed(flow(make_trace(family, **choices)).text(80), 80)
    assert "W_gate" in "\n".join(lines) and "RMSNorm(H″)" in "\n".join(lines)
    assert all(cell_len(line) <= 80 for line in lines)


def test_parts_have_their_colour_and_the_text_its_tokens(whole: Flow) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.patches import FancyBboxPatch

    figure = whole.draw()
    boxes = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    edges = [to_hex(box.get_edgecolor()) for box in boxes]
    for colour in (QUERY, KEY, VALUE):
        assert edges.count(colour.lower()) == 3  # encoder, decoder, cross-attention
    assert edges.count(ATTENTION.lower()) == 9
    painted = {*edges, *(to_hex(box.get_facecolor()) for box in boxes if box.get_fill())}
    unchanged = {colour.lower() for colour in (QUERY, KEY, VALUE, ATTENTION)}
    assert painted <= unchanged | {colour.lower() for colour in DARK} | {"#000000"}
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert any(text.startswith("X = #4 #5") for text in texts)
    html = whole.html()
    assert html.count('class="step query"') == 3 and "() = ()" not in html
