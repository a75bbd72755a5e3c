"""RoBERTa against transformers on copied weights; its positions count from the padding's id on."""

import torch

from qkv.model import fast
from tests.parity import checks
from tests.parity.encoders import PAD, Pair, answers, assert_same_answers, text_pair

HEADS = ["none", "masked", "sequence", "token", "answer"]
SIZES = [
    {"heads": 1, "layers": 1, "d_ff": 20},
    {"d_model": 24, "heads": 6, "layers": 3, "vocab_size": 301, "max_length": 12},
]


def roberta_pair(head: str = "none", seed: int = 0, max_length: int = 40, **sizes) -> Pair:
    """All of their tokens are of one segment, whose vector is 0 here."""
    theirs = {"type_vocab_size": 1, "max_position_embeddings": max_length + PAD + 1}
    pair = text_pair("Roberta", head, seed, theirs=theirs, max_length=max_length, **sizes)
    torch.nn.init.zeros_(pair[0].base_model.embeddings.token_type_embeddings.weight)
    return pair


test_heads_equal_transformers = checks.heads_are_equal(
    roberta_pair, HEADS, [12, 12, 12], [7, 1, 12, 4]
)
test_sizes_equal_transformers = checks.sizes_are_equal(roberta_pair, "masked", SIZES, [9, 12, 3])
test_any_lengths_equal_transformers = checks.any_lengths_are_equal(roberta_pair, ["none"], 40)
test_gradients_equal_transformers = checks.gradients_are_equal(
    roberta_pair, ["none", "masked", "sequence"], [5, 9, 2]
)


@torch.no_grad()
def test_the_vector_of_their_one_segment_may_be_a_part_of_our_positions():
    """A released model has one; where each token has the same, each position may hold it."""
    theirs, ours = roberta_pair("masked", seed=2)
    row = theirs.base_model.embeddings.token_type_embeddings.weight
    row.copy_(torch.randn(row.shape))
    ((mine, other),) = answers((theirs, ours), [7, 12]).values()
    assert (mine - other).abs().max() > 0.1
    ours.encoder.positions.table.weight += row
    assert_same_answers((theirs, ours), torch.float64, fast, 1e-6, [7, 12])
