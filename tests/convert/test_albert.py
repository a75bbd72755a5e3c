"""ALBERT's checkpoints, both ways."""

from hypothesis import strategies as st

from qkv.convert.architectures.bert import ALBERT
from qkv.convert.opening import open_model
from tests.convert.encoders import TINY, heads_go_both_ways, text_configs
from tests.convert.harness import made, saved


@st.composite
def configs(draw, head) -> dict:
    return {**draw(text_configs()), "embedding_size": draw(st.integers(3, 9))}


test_both_ways = heads_go_both_ways(ALBERT, configs)


def test_what_is_read():
    with saved(made("AlbertModel", {**TINY, "embedding_size": 4})) as folder:
        model = open_model(folder).content["model"]
    assert (model["shared_layers"], model["d_embedding"]) == (True, 4)


def test_embeddings_that_are_as_wide_as_the_model_are_widened_all_the_same():
    with saved(made("AlbertModel", {**TINY, "embedding_size": 8})) as folder:
        source = open_model(folder)
    assert source.content["model"]["d_embedding"] == 8
