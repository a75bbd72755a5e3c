"""A trace as the road of its steps: names, shapes, lanes and a table that keeps to its width."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from qkv.inspect.flow import flow_table
from qkv.inspect.road import road
from qkv.inspect.trace import Trace
from tests.inspect.conftest import make_trace


def test_every_quantity_is_a_step_with_its_own_shape(trace: Trace) -> None:
    steps = road(trace)
    assert sorted(step.key for step in steps) == sorted(trace.keys())
    for step in steps:
        assert step.shape == trace.shape(step.key) == tuple(trace[step.key].shape)
        assert step.formula == trace.formula(step.key)
        assert len(step.shape) == len(
            [letter for letter in step.shape_letters if letter == ","]
        ) + (step.shape != ())


def test_the_order_is_that_of_the_formulas_but_labels_wait_for_the_loss() -> None:
    keys = [step.key for step in road(make_trace("encoder-decoder"))]
    assert keys[-2:] == ["target.labels", "loss"]
    rest = [key for key in make_trace("encoder-decoder") if key not in keys[-2:]]
    assert keys[:-2] == rest


def test_lanes_and_layers() -> None:
    steps = {step.key: step for step in road(make_trace("encoder-decoder"))}
    places = {
        key: (steps[key].lane, steps[key].level)
        for key in (
            "source.input",
            "encoder.1.feed_forward.output",
            "target.tokens",
            "decoder.2.cross_attention.key",
            "decoder.output",
            "target.labels",
            "loss",
        )
    }
    assert list(places.values()) == [
        ("encoder", None),
        ("encoder", 1),
        ("decoder", None),
        ("decoder", 2),
        ("decoder", None),
        ("output", None),
        ("output", None),
    ]
    assert steps["decoder.2.cross_attention.key"].name == "cross-attention: keys"
    assert steps["decoder.2.cross_attention.key"].shape_letters == "(B, H, S, D/H)"


def test_a_norm_is_named_only_where_there_is_one() -> None:
    post = {step.key: step.name for step in road(make_trace("encoder-decoder"))}
    pre = {step.key: step.name for step in road(make_trace("decoder"))}
    key = "decoder.0.feed_forward.residual"
    assert (post[key], pre[key]) == ("feed-forward: residual and norm", "feed-forward: residual")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_is_readable_in_its_width(trace: Trace, width: int) -> None:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(flow_table(road(trace), width=width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(cell_len, lines)) <= width
    assert len(lines) < 2 * len(road(trace))  # no formula is squeezed to a letter a line
    for step in road(trace):
        if step.level not in (None, 0):
            continue
        shape = f"{step.shape_letters} = ({', '.join(map(str, step.shape))}"
        name = step.name.rpartition(": ")[2]
        row = [line for line in lines if name in line and shape in line]
        assert row or step.key == "loss", step
        assert width < 120 or any(step.key in line for line in lines), step
    assert any("loss" in line and "a number" in line for line in lines)
    assert any("coder.0." in line for line in lines) == (width >= 120)
    headings = [line.strip() for line in lines if "layer ×" in line]
    assert headings and all(" = " not in heading for heading in headings)
