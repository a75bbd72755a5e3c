"""The road through a model: every step with its shape, and the arrows that pass others by."""

import io
import warnings
from collections.abc import Iterator

import pytest
from rich.console import Console

from qkv.inspect import fonts
from qkv.inspect.flow import (
    Lane,
    Step,
    crossings,
    draw_flow,
    flow_page,
    flow_table,
    folded,
    n_layers,
    skips,
)


def layer(lane: Lane, level: int, *sublayers: str) -> Iterator[Step]:
    for sublayer in sublayers:
        for name in ("query", "key", "output", "residual"):
            key = f"{lane}.{level}.{sublayer}.{name}"
            yield Step(name, f"{name} [x]", "(B, T, D)", (1, 5, 64), key, lane, level)


def single(key: str, lane: Lane) -> Step:
    return Step(key, "<x> & $y$ + $z$", "(B,)", (7,), key, lane)


ENCODER = [
    single("source.input", "encoder"),
    *(step for level in range(3) for step in layer("encoder", level, "self_attention")),
    single("encoder.output", "encoder"),
]
DECODER = [
    single("target.input", "decoder"),
    *(
        step
        for level in range(2)
        for step in layer("decoder", level, "self_attention", "cross_attention")
    ),
    single("logits", "output"),
]
STEPS = ENCODER + DECODER


def keys(steps: list[Step], pairs: list[tuple[int, int]]) -> list[tuple[str, str]]:
    return [(steps[start].key, steps[end].key) for start, end in pairs]


def test_folding_keeps_one_layer_of_each_lane() -> None:
    shown = folded(STEPS)
    assert {step.level for step in shown} == {None, 0}
    assert len(shown) == 1 + 4 + 1 + 1 + 8 + 1
    assert (n_layers(STEPS, "encoder"), n_layers(STEPS, "decoder")) == (3, 2)
    assert folded(shown) == shown
    late = [
        step for step in STEPS if step.level != 0
    ]  # the first that is there, whatever its number
    assert {step.level for step in folded(late)} == {None, 1}


def test_a_residual_adds_what_its_sublayer_was_given() -> None:
    assert keys(STEPS, skips(STEPS))[:2] == [
        ("source.input", "encoder.0.self_attention.residual"),
        ("encoder.0.self_attention.residual", "encoder.1.self_attention.residual"),
    ]
    assert keys(STEPS, skips(STEPS))[3:5] == [
        ("target.input", "decoder.0.self_attention.residual"),
        ("decoder.0.self_attention.residual", "decoder.0.cross_attention.residual"),
    ]
    assert len(skips(STEPS)) == 3 + 4
    assert skips(STEPS[1:3]) == []


def test_the_encoders_output_goes_to_the_keys_of_each_cross_attention() -> None:
    assert keys(STEPS, crossings(STEPS)) == [
        ("encoder.output", f"decoder.{level}.cross_attention.key") for level in range(2)
    ]
    assert crossings(DECODER) == []


def draw(steps: list[Step], title: str = "", fold: bool = True) -> tuple[list[str], int]:
    """The texts and the number of arrows in a chart that was rendered without a warning."""
    from matplotlib.patches import FancyArrowPatch

    figure = draw_flow(steps, title, fold)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(io.BytesIO())
    (axes,) = figure.axes
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    return [text.get_text() for text in axes.texts], len(arrows)


def test_the_chart_has_each_step_its_formula_shape_and_arrows() -> None:
    texts, arrows = draw(STEPS, "From text to logits")
    shown = folded(STEPS)
    assert arrows == (len(shown) - 2) + len(skips(shown)) + len(crossings(shown))
    assert texts.count("<x> & $y$ + $z$") == 4  # dollars are no formula
    assert texts.count("(B, T, D)") == texts.count("(1, 5, 64)") == 12
    assert "(7,)" in texts
    assert "× 3" in texts and "× 2" in texts


def test_an_unfolded_chart_names_each_layer() -> None:
    texts, arrows = draw(DECODER, fold=False)
    assert [text for text in texts if text.startswith("layer ")] == ["layer 0", "layer 1"]
    assert arrows == (len(DECODER) - 1) + len(skips(DECODER))


def test_the_encoder_stands_left_and_the_output_below_the_decoder() -> None:
    axes = draw_flow(STEPS).axes[0]
    where = {text.get_text(): text.get_position() for text in axes.texts}
    assert where["source.input"][0] < where["target.input"][0] == where["logits"][0]
    assert where["logits"][1] == min(
        y for name, (_, y) in where.items() if "." in name or name == "logits"
    )


def test_chinese_without_a_font_draws_no_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "chinese_font", lambda: None)
    step = Step("输入", "嵌入(X)", "(B,)", (1,), "a", "encoder")
    texts, _ = draw([step], "我爱你")
    assert texts[:2] == ["⟨1⟩", "⟨2⟩(X)"]


def test_the_table_has_every_step_and_says_what_is_folded() -> None:
    console = Console(width=120, file=io.StringIO(), color_system=None)
    console.print(flow_table(STEPS))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    for step in folded(STEPS):
        assert any(
            all(part in line for part in (step.name, step.formula, step.shape_letters, step.key))
            for line in lines
        )
    assert [line.strip() for line in lines if "layer ×" in line] == [
        "encoder layer × 3",
        "decoder layer × 2",
    ]
    assert len(lines) == 1 + len(folded(STEPS)) + 6
    assert flow_table(STEPS, fold=False).row_count == len(STEPS) + 9


def test_the_page_has_every_step_escaped_and_every_layer_framed() -> None:
    text = flow_page(STEPS, "a < b")
    assert text.count('class="step"') == len(folded(STEPS))
    assert "&lt;x&gt; &amp;" in text and "<x>" not in text
    assert text.count('class="layer"') == 2
    assert text.count("<div") == text.count("</div>")
    assert flow_page(STEPS, fold=False).count('class="layer"') == 5
    assert "a &lt; b" in text
