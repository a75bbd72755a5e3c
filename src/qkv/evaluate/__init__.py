"""How good it is: BLEU, chrF, exact match."""

from qkv.evaluate.scores import (
    Score,
    bleu,
    check_tokenizer,
    chrf,
    exact_match,
    translation_scores,
)

__all__ = ["Score", "bleu", "check_tokenizer", "chrf", "exact_match", "translation_scores"]
