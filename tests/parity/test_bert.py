"""BERT against transformers on copied weights."""

from tests.parity import checks
from tests.parity.encoders import Pair, text_pair

HEADS = ["none", "masked", "pairs", "sequence", "token", "answer"]
SIZES = [
    {"heads": 1, "layers": 1, "d_ff": 20},
    {"d_model": 24, "heads": 6, "layers": 3, "vocab_size": 301, "max_length": 12},
    {"d_model": 20, "heads": 2, "segments": 5},
]


def bert_pair(head: str = "none", seed: int = 0, segments: int = 2, **sizes) -> Pair:
    theirs = {"type_vocab_size": segments}
    return text_pair("Bert", head, seed, theirs=theirs, n_segments=segments, **sizes)


test_heads_equal_transformers = checks.heads_are_equal(
    bert_pair, HEADS, [12, 12, 12], [7, 1, 12, 4]
)
test_sizes_equal_transformers = checks.sizes_are_equal(bert_pair, "pairs", SIZES, [9, 12, 3])
test_any_lengths_equal_transformers = checks.any_lengths_are_equal(bert_pair, ["none", "pairs"], 20)
test_gradients_equal_transformers = checks.gradients_are_equal(
    bert_pair, ["none", "pairs", "sequence", "answer"], [5, 9, 2]
)
