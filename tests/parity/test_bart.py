"""BART against transformers' on the same weights."""

from qkv.convert.architectures.bart import BART
from tests.convert.harness import made
from tests.convert.seq2seq import draw_bias
from tests.parity.seq2seq import (
    Pair,
    any_lengths_are_equal,
    gradients_are_equal,
    logits_are_equal,
    pair_of,
)

SMALL = {
    "vocab_size": 40,
    "d_model": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 24,
}
SIZES = {
    "original": {},
    "scaled": {"scale_embedding": True, "activation_function": "relu"},
    "deeper decoder": {"encoder_layers": 1, "decoder_layers": 3},
    "nothing tied": {"tie_word_embeddings": False},
}


def bart_pair(seed: int = 0, **sizes) -> Pair:
    theirs = made("BartForConditionalGeneration", {**SMALL, **sizes}, seed)
    draw_bias(theirs, seed)
    return pair_of(theirs)


test_logits = logits_are_equal(bart_pair, SIZES, 24)
test_logits_at_any_lengths = any_lengths_are_equal(bart_pair, 24)
test_gradients = gradients_are_equal(bart_pair, SIZES, BART)
