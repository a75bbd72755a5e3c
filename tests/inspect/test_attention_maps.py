"""Attention maps are the trace's weights, with the tokens that look and are seen."""

import re

import pytest
import torch

from qkv.errors import UserError
from qkv.inspect.attention_maps import attention_maps, kinds_of
from qkv.inspect.trace import Trace
from tests.inspect.conftest import make_trace
from tests.inspect.test_maps import draw_strictly, labels, panels

KINDS = {
    "encoder-decoder": [
        "encoder.self_attention",
        "decoder.self_attention",
        "decoder.cross_attention",
    ],
    "encoder": ["encoder.self_attention"],
    "decoder": ["decoder.self_attention"],
}


def test_each_kind_holds_the_weights_of_every_layer_and_head(trace: Trace) -> None:
    assert kinds_of(trace) == KINDS[trace.model.config.family]
    for kind in kinds_of(trace):
        maps = attention_maps(trace, kind)
        stack, _, name = kind.partition(".")
        for layer in maps.layers:
            whole = trace[f"{stack}.{layer}.{name}.weights"]
            assert torch.equal(maps.weights[layer], whole[0, :, : len(maps.rows)].float())
        torch.testing.assert_close(maps.weights.sum(-1), torch.ones(maps.weights.shape[:-1]))


def test_padding_is_cut_off_the_second_row() -> None:
    trace = make_trace("encoder-decoder")
    maps = attention_maps(trace, row=1)
    assert (maps.rows, maps.columns) == (("#2", "#13"), ("#8", "#9", "#3"))
    assert maps.weights.shape == (3, 4, 2, 3)
    torch.testing.assert_close(maps.weights.sum(-1), torch.ones(3, 4, 2))


def test_the_mask_says_what_may_be_seen() -> None:
    maps = attention_maps(make_trace("decoder"))
    assert torch.equal(maps.allowed[0, 0], torch.ones(5, 5).tril().bool())
    assert attention_maps(make_trace("encoder")).allowed.all()


def test_layers_and_heads_that_are_asked_for_are_those() -> None:
    trace = make_trace("encoder-decoder")
    whole = attention_maps(trace)
    part = attention_maps(trace, layers=[2, 0], heads=[3, 1])
    assert (part.layers, part.heads) == ((2, 0), (3, 1))
    torch.testing.assert_close(part.weights, whole.weights[[2, 0]][:, [3, 1]])
    assert torch.equal(part.allowed, whole.allowed[[2, 0]])


def test_a_figure_has_a_panel_a_head() -> None:
    maps = attention_maps(make_trace("encoder-decoder"), layers=[1, 2])
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
    draw_strictly(figure)


def test_one_head_alone_says_which_it_is_and_hatches_what_is_masked() -> None:
    figure = attention_maps(make_trace("decoder"), layers=[2], heads=[1]).draw()
    (axes,) = panels(figure)
    assert "layer 2, head 1" in figure.get_suptitle()
    assert axes.images[0].get_array().mask.sum() == 10
    draw_strictly(figure)


def test_a_terminal_and_a_notebook_show_the_same_numbers() -> None:
    maps = attention_maps(make_trace("decoder"), layers=[0], heads=[2])
    lines = maps.shaded().plain.splitlines()
    assert re.findall(r"\d\.\d\d", lines[-1]) == [f"{x:.2f}" for x in maps.weights[0, 0, -1]]
    assert lines[1].count("·") == 4
    html = maps._repr_html_()
    assert html.count("<td") == 25
    assert html.count('class="shut"') == 10
    assert f"#7 → #2: {maps.weights[0, 0, 4, 0]:.4g}" in html


def test_mistakes() -> None:
    trace = make_trace("encoder")
    with pytest.raises(UserError, match=r"no 'decoder.self_attention'; it has encoder"):
        trace.maps("decoder.self_attention")
    with pytest.raises(UserError, match=r"no layer 2: this model has 2, 0 to 1"):
        trace.maps(layers=[2])
    with pytest.raises(UserError, match=r"no head 4: this model has 4, 0 to 3"):
        trace.maps(heads=[4])
