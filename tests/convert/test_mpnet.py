"""MPNet's checkpoints, both ways."""

import pytest
import torch
from hypothesis import strategies as st
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from qkv.convert.architectures.bert import BUCKETS, FARTHEST, MPNET
from qkv.errors import UserError
from qkv.model.positions.relative import buckets
from tests.convert.encoders import LONGEST, heads_go_both_ways, text_configs
from tests.convert.harness import change, read, saved
from tests.convert.small import assert_reads_same, small


@st.composite
def configs(draw, head) -> dict:
    length = draw(st.integers(LONGEST + 2, 24))
    found = {**draw(text_configs()), "pad_token_id": 1, "max_position_embeddings": length}
    return {**found, "hidden_act": "gelu"} if head == "masked" else found


test_both_ways = heads_go_both_ways(MPNET, configs)


def test_the_buckets_of_long_texts():
    apart = torch.arange(1, 600)
    theirs = MPNetEncoder.relative_position_bucket(-apart)
    assert torch.equal(buckets(apart, BUCKETS // 2, FARTHEST), theirs)


@torch.no_grad()
def test_a_body_without_a_pooler():
    theirs = small("MPNetModel")
    with saved(theirs) as folder:
        change(folder, lambda w: {n: one for n, one in w.items() if "pooler" not in n})
        assert_reads_same(theirs, folder)


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("MPNetModel", {"relative_attention_num_buckets": 16}, "num_buckets is 16, but only 32"),
        ("MPNetModel", {"pad_token_id": 0}, "pad_token_id is 0, but only 1"),
        ("MPNetForMaskedLM", {"hidden_act": "relu"}, "always 'gelu'"),
    ],
)
def test_what_cannot_be_read_is_named(name, changed, message):
    with saved(small(name)) as folder:
        change(folder, **changed)
        with pytest.raises(UserError, match=message):
            read(folder)
