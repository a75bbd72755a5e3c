"""ALBERT against transformers on copied weights: one block for all layers, narrow embeddings."""

from functools import partial

from tests.parity import checks
from tests.parity.encoders import Pair, text_pair

HEADS = ["none", "masked", "pairs", "sequence", "token", "answer"]
SIZES = [
    {"heads": 1, "layers": 1, "d_ff": 20, "d_embedding": 8},
    {"d_model": 24, "heads": 6, "layers": 3, "vocab_size": 301, "max_length": 12},
    {"d_embedding": 48},  # wider than the stream
]


def albert_pair(head: str = "none", seed: int = 0, d_embedding: int = 12, **sizes) -> Pair:
    theirs = {"embedding_size": d_embedding}
    return text_pair("Albert", head, seed, theirs=theirs, d_embedding=d_embedding, **sizes)


deeper = partial(albert_pair, layers=3)

test_heads_equal_transformers = checks.heads_are_equal(
    albert_pair, HEADS, [12, 12, 12], [7, 1, 12, 4]
)
test_sizes_equal_transformers = checks.sizes_are_equal(albert_pair, "pairs", SIZES, [9, 12, 3])
test_any_lengths_equal_transformers = checks.any_lengths_are_equal(deeper, ["none", "pairs"], 20)
# The shared block's are sums over its layers, the embedding's over both of its ends.
test_gradients_equal_transformers = checks.gradients_are_equal(
    deeper, ["none", "pairs", "sequence"], [5, 9, 2]
)
