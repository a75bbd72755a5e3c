"""How good it is: BLEU, chrF, exact match."""

from qkv.evaluate.scores import Score, bleu, chrf, exact_match, translation_scores

__all__ = ["Score", "bleu", "chrf", "exact_match", "translation_scores"]
