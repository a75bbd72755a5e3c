"""DistilBERT's checkpoints, both ways."""

import torch
from hypothesis import strategies as st

from qkv.convert.architectures.bert import DISTILBERT
from qkv.convert.opening import open_model
from tests.convert.encoders import heads_go_both_ways, text_configs
from tests.convert.harness import saved
from tests.convert.small import assert_reads_same, small


@st.composite
def configs(draw, head) -> dict:
    sizes = draw(text_configs())
    names = {"hidden_dim": "intermediate_size", "activation": "hidden_act"}
    renamed = {theirs: sizes[usual] for theirs, usual in names.items()}
    return {**sizes, **renamed, "num_labels": draw(st.integers(2, 4))}


test_both_ways = heads_go_both_ways(DISTILBERT, configs)


@torch.no_grad()
def test_positions_that_are_waves_lie_in_the_file():
    theirs = small("DistilBertModel", sinusoidal_pos_embds=True)
    with saved(theirs) as folder:
        assert_reads_same(theirs, folder)


def test_a_text_has_no_segments():
    with saved(small("DistilBertForSequenceClassification")) as folder:
        model = open_model(folder).content["model"]
    assert (model["n_segments"], model["pooler"], model["norm_epsilon"]) == (0, "relu", 1e-12)
