"""How good a model is: `evaluate` for a model of any task, and the scores it is made of."""

from qkv.evaluation.by_task import Evaluation, evaluate, evaluate_choices
from qkv.evaluation.perplexity import (
    bits_per_byte,
    couplet_scores,
    language_scores,
    loss,
    perplexity,
)
from qkv.evaluation.scores import (
    Score,
    accuracy,
    bleu,
    check_tokenizer,
    chrf,
    exact_match,
    translation_scores,
)

__all__ = [
    "Evaluation",
    "Score",
    "accuracy",
    "bits_per_byte",
    "bleu",
    "check_tokenizer",
    "chrf",
    "couplet_scores",
    "evaluate",
    "evaluate_choices",
    "exact_match",
    "language_scores",
    "loss",
    "perplexity",
    "translation_scores",
]
