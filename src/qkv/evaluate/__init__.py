"""How good it is: BLEU, chrF, exact match; perplexity, bits per byte; accuracy; verse form."""

from qkv.evaluate.language import (
    accuracy,
    bits_per_byte,
    couplet_scores,
    language_scores,
    loss,
    perplexity,
    well_formed_couplets,
)
from qkv.evaluate.scores import (
    Score,
    bleu,
    check_tokenizer,
    chrf,
    exact_match,
    translation_scores,
)

__all__ = [
    "Score",
    "accuracy",
    "bits_per_byte",
    "bleu",
    "check_tokenizer",
    "chrf",
    "couplet_scores",
    "exact_match",
    "language_scores",
    "loss",
    "perplexity",
    "translation_scores",
    "well_formed_couplets",
]
