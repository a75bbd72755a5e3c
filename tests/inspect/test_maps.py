"""Maps hold the weights that they were given, under the tokens that they were given."""

import io
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from qkv.inspect import fonts
from qkv.inspect.maps import draw_map, draw_maps, shaded
from qkv.inspect.style import DIVERGING, SEQUENTIAL

ENGLISH = ["I", "love", "you", "$^$", "<eos>"]
CHINESE = ["我", "爱", "你", "。", "<eos>"]
CAUSAL = np.tril(np.ones((5, 5), dtype=bool))


@pytest.fixture
def no_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "chinese_font", lambda: None)


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), size=shape[:-1])


def panels(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.images and axes.get_visible()]


def labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def draw_strictly(figure: Any) -> None:
    """Render it; a missing glyph, or any other warning, is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(io.BytesIO(), format="png")


def test_a_map_holds_its_weights_tokens_and_names() -> None:
    values = weights(5, 5)
    figure = draw_map(torch.tensor(values), ENGLISH, ENGLISH[::-1], "Who looks at whom")
    (axes,) = panels(figure)
    np.testing.assert_array_equal(axes.images[0].get_array(), values)
    assert labels(axes.yaxis) == ENGLISH
    assert labels(axes.xaxis) == ENGLISH[::-1]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
    assert figure.get_suptitle() == "Who looks at whom"
    assert figure.axes[-1].get_ylabel() == "attention weight"
    written = [text.get_text() for text in axes.texts]
    assert written == [f"{value:.2f}" for value in values.flat]
    draw_strictly(figure)  # a token with two dollars is no formula


def test_masked_cells_are_left_to_the_hatched_ground() -> None:
    figure = draw_map(weights(5, 5), ENGLISH, ENGLISH, "", allowed=CAUSAL)
    (axes,) = panels(figure)
    np.testing.assert_array_equal(axes.images[0].get_array().mask, ~CAUSAL)
    assert axes.patch.get_hatch()
    assert len(axes.texts) == CAUSAL.sum()
    assert "masked" in figure.get_supxlabel()
    assert figure.get_supxlabel() and not draw_map(weights(1, 1), ["a"], ["b"], "").get_supxlabel()


def test_scores_may_be_negative_and_shut_by_infinity() -> None:
    scores = np.array([[-3.0, -np.inf], [1.0, 2.0]])
    image = panels(draw_map(scores, ["a", "b"], ["a", "b"], "", value="score"))[0].images[0]
    assert image.get_clim() == (-3, 3)
    assert image.get_cmap().name == DIVERGING
    np.testing.assert_array_equal(image.get_array().mask, [[False, True], [False, False]])
    low, high = panels(draw_map(weights(2, 3), "ab", "abc", ""))[0].images[0].get_clim()
    assert (low, high) == (0, weights(2, 3).max())


def test_layers_and_heads_share_axes_and_one_scale() -> None:
    values = weights(2, 3, 5, 4)
    figure = draw_maps(values, ENGLISH, CHINESE[:4], "", layers=[0, 5], viewer_fonts=True)
    drawn = panels(figure)
    assert [axes.get_title() for axes in drawn] == [
        f"layer {layer}, head {head}" for layer in (0, 5) for head in range(3)
    ]
    for axes, expected in zip(drawn, values.reshape(6, 5, 4), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.images[0].get_clim() == (0, values.max())
        assert axes.images[0].get_cmap().name == SEQUENTIAL
    shown = [axes.yaxis.get_tick_params()["labelleft"] for axes in drawn]
    assert shown == [True, False, False] * 2
    assert [axes.xaxis.get_tick_params()["labelbottom"] for axes in drawn] == [False] * 3 + [
        True
    ] * 3
    assert labels(drawn[3].xaxis) == CHINESE[:4]


@pytest.mark.parametrize(("count", "across"), [(1, 1), (4, 4), (5, 4), (6, 3), (8, 4)])
def test_heads_alone_fill_rows_and_the_lowest_panels_carry_tokens(count: int, across: int) -> None:
    drawn = panels(draw_maps(weights(count, 5, 5), ENGLISH, ENGLISH, "", allowed=CAUSAL))
    assert [axes.get_title() for axes in drawn] == [f"head {head}" for head in range(count)]
    places = {axes.get_subplotspec().colspan.start for axes in drawn}
    assert places == set(range(across))
    bottom = [axes.xaxis.get_tick_params()["labelbottom"] for axes in drawn]
    assert bottom == [place + across >= count for place in range(count)]


@pytest.mark.usefixtures("no_chinese")
def test_chinese_without_a_font_has_stand_ins_and_says_so() -> None:
    figure = draw_map(weights(5, 5), ENGLISH, CHINESE, "我爱你")
    (axes,) = panels(figure)
    assert labels(axes.xaxis) == ["⟨1⟩", "⟨2⟩", "⟨3⟩", "⟨4⟩", "<eos>"]
    assert figure.get_suptitle() == "⟨5⟩"
    assert "U+6211" in figure.get_supxlabel() and "fonts-noto-cjk" in figure.get_supxlabel()
    draw_strictly(figure)
    kept = draw_map(weights(5, 5), ENGLISH, CHINESE, "我爱你", viewer_fonts=True)
    assert labels(panels(kept)[0].xaxis) == CHINESE


@pytest.mark.parametrize("count", [1, 5, 60, 150])
def test_labels_do_not_run_into_each_other(count: int) -> None:
    tokens = [f"token{place}" if place % 7 else "international-affairs" for place in range(count)]
    figure = draw_map(np.full((count, count), 1 / count), tokens, tokens, "")
    draw_strictly(figure)
    (axes,) = panels(figure)
    assert max(figure.get_size_inches()) < 13
    for axis in (axes.xaxis, axes.yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        edges = [(box.x0, box.x1) if axis is axes.xaxis else (-box.y1, -box.y0) for box in boxes]
        overlaps = [a[1] - b[0] for a, b in pairwise(edges)]
        assert max(overlaps, default=0) < 1.5  # points; letters keep clear of a box's edge
        assert all(
            label.get_text()[:4] == tokens[round(place)][:4]
            for label, place in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
        )
    assert len(labels(axes.xaxis)) == count if count <= 60 else len(labels(axes.xaxis)) < count


def test_labels_that_do_not_fit_are_turned_and_single_characters_are_not() -> None:
    tokens = ["我", "爱", "international", "be", "c"]
    (axes,) = panels(draw_map(weights(5, 5), tokens, tokens, "", viewer_fonts=True))
    assert [label.get_rotation() for label in axes.xaxis.get_ticklabels()] == [0, 0, 90, 90, 0]
    assert {label.get_rotation() for label in axes.yaxis.get_ticklabels()} == {0}


def test_the_wrong_number_of_tokens_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="2 rows × 1 columns"):
        draw_map(weights(2, 2), ["a", "b"], ["a"], "")
    with pytest.raises(ValueError, match="2 layers × 2 heads"):
        draw_maps(weights(1, 2, 2, 2), "ab", "ab", "", layers=[0, 1])


def shown(renderable: Any, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_terminal_shows_blocks_values_and_what_is_masked() -> None:
    values = np.array([[1.0, 0.0], [0.25, 0.75]])
    lines = shown(shaded(values, ["我", "love"], ["a", "你"], 60, np.array([[1, 0], [1, 1]])), 60)
    assert [line.rstrip() for line in lines] == [
        "     a       你",
        "  我 ██ 1.00 ·",
        "love ░░ 0.25 ▓▓ 0.75",
    ]


def test_narrow_columns_have_upright_heads_and_go_on_in_bands() -> None:
    values = np.eye(6)
    tokens = ["我", "ab", "c", "d", "e", "f"]
    lines = [line.rstrip() for line in shown(shaded(values, tokens, tokens, 11), 11)]
    assert lines[:3] == ["     a", "   我b c d", "我 ██"]
    assert lines[3] == "ab   ██"
    assert lines[8] == "   e f"
    assert lines[-1] == " f   ██"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text("ab我爱 é", max_size=9), min_size=1, max_size=12),
    st.lists(st.text("ab我爱 é", max_size=20), min_size=1, max_size=40),
    st.integers(30, 120),
)
def test_a_shaded_map_keeps_within_its_width(
    rows: list[str], columns: list[str], width: int
) -> None:
    text = shaded(weights(len(rows), len(columns)), rows, columns, width)
    lines = text.plain.split("\n")
    assert max(map(cell_len, lines)) <= width
    blocks = sum(line.count("█") + line.count("▓") for line in lines)
    assert blocks >= 2  # the strongest is dark
    assert len(shown(text, width)) == len(lines)  # and nothing wraps
