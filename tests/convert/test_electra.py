"""ELECTRA's checkpoints, both ways: generators, discriminators and what is made of them."""

import pytest
import torch
from hypothesis import strategies as st

from qkv.convert.architectures.bert import ELECTRA
from qkv.convert.huggingface.fitting import fitting
from qkv.errors import UserError
from tests.convert.encoders import heads_go_both_ways, said, text_configs
from tests.convert.harness import assert_close, assert_round_trip, change, read, saved
from tests.convert.small import small


@st.composite
def configs(draw, head) -> dict:
    found = {**draw(text_configs()), "num_labels": draw(st.integers(2, 4))}
    widths = st.sampled_from([3, 5, found["hidden_size"]])
    activation = "gelu" if head == "masked" else found["hidden_act"]
    return {**found, "embedding_size": draw(widths), "hidden_act": activation}


test_both_ways = heads_go_both_ways(ELECTRA, configs)


@torch.no_grad()
def test_of_a_discriminator_the_body_is_read():
    theirs = small("ElectraForPreTraining")
    with saved(theirs) as folder:
        source, ours = read(folder)
    assert source.content["task"] == "embed"
    for mine, other in said("none", ours, theirs.electra, [7, 12, 1], 0):
        assert_close(mine, other)
    with saved(theirs) as folder:
        assert_round_trip(read(folder)[0])


def test_embeddings_as_wide_as_the_model_are_not_widened():
    with saved(small("ElectraModel", embedding_size=8)) as folder:
        _, ours = read(folder)
    assert ours.config.d_embedding == 0
    assert fitting(ours.config, "embed", "electra")[0] is ELECTRA


def test_a_generator_is_always_gelu():
    with saved(small("ElectraForMaskedLM")) as folder:
        change(folder, hidden_act="relu")
        with pytest.raises(UserError, match="always 'gelu'"):
            read(folder)
