"""What the lab of the feed-forward layer builds and measures."""

from __future__ import annotations

import pytest
import torch

from qkv_labs import feed_forward as lab
from qkv_labs.tools import n_weights


def test_arms_differ_in_the_feed_forward_layer_and_have_as_many_parameters() -> None:
    sizes = {name: n_weights(lab.build(name)) for name in lab.ARMS}
    assert sizes["×4, ReLU"] == sizes["×4, GELU"] == sizes[lab.LINEAR]
    assert sizes["gated, SiLU"] == pytest.approx(sizes["×4, ReLU"], rel=0.02)
    assert n_weights(lab.build(lab.WIDER, lab.equal_width())) == pytest.approx(
        sizes["×4, ReLU"], rel=0.1
    )
    assert sizes[lab.NONE] < sizes["×1, ReLU"] < sizes["×4, ReLU"]


def test_without_the_layer_the_block_is_attention_alone() -> None:
    x = torch.randn(2, 3, lab.D_MODEL)
    assert not lab.build(lab.NONE).encoder.blocks[0].feed_forward(x).any()
    layer = lab.build(lab.LINEAR).encoder.blocks[0].feed_forward
    torch.testing.assert_close(layer(x) + layer(-x), 2 * layer(0 * x))  # linear but for a bias


def test_every_subject_and_relation_has_one_object() -> None:
    tokens, objects = lab.facts(0)
    assert len({tuple(row) for row in tokens.tolist()}) == len(objects) == lab.N_NAMES**2
    assert torch.equal(objects, lab.facts(0)[1])
    assert not torch.equal(objects, lab.facts(1)[1])


def test_an_untrained_model_knows_nothing_and_a_trained_one_something() -> None:
    assert lab.recall(lambda: lab.build(lab.FULL), 0, steps=0) < 5
    assert lab.recall(lambda: lab.build(lab.FULL), 0, steps=200) > 8
    assert lab.copy(lambda: lab.build(lab.FULL), 0, steps=0) < 15
