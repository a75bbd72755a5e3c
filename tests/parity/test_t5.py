"""T5 and its version 1.1 against transformers' on the same weights."""

import torch
from torch import nn
from transformers.models.t5.modeling_t5 import T5LayerNorm

from qkv.convert.architectures.t5 import T5
from tests.convert.harness import made
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
    "num_heads": 4,
    "d_kv": 6,
    "num_layers": 2,
    "d_ff": 32,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
SIZES = {
    "original": {},
    "version 1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "wide heads": {"d_kv": 11, "num_heads": 3, "num_decoder_layers": 3, "num_layers": 1},
    "many buckets": {"relative_attention_num_buckets": 33, "relative_attention_max_distance": 50},
}


def t5_pair(seed: int = 0, **sizes) -> Pair:
    theirs = made("T5ForConditionalGeneration", {**SMALL, **sizes}, seed)
    if sizes.get("tie_word_embeddings") is False:
        draw = torch.Generator().manual_seed(seed)
        theirs.lm_head.weight = nn.Parameter(torch.randn(40, 24, generator=draw))
    pair = pair_of(theirs)
    _norms_in_full(theirs)
    return pair


def _norms_in_full(theirs: nn.Module) -> None:
    """Theirs take the mean of squares in float32 whatever the rest is in."""
    for module in list(theirs.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, T5LayerNorm):
                norm = nn.RMSNorm(len(child.weight), eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)


test_logits = logits_are_equal(t5_pair, SIZES, 30)
test_logits_at_any_lengths = any_lengths_are_equal(t5_pair, 40)
test_gradients = gradients_are_equal(t5_pair, SIZES, T5)
