"""Encoders that never learnt anything, in float64, with a vocabulary of characters."""

from typing import Any

import torch

from qkv.config import TokenizerConfig
from qkv.model import Encoder
from qkv.tasks.classify import Classes, Classifier
from qkv.text import train_tokenizer
from tests.run.common import untaught

SENTENCE = "the cat sees a dog and 猫 likes no fish but birds"
# A character is a token, so that lengths are easy to count.
TOKENIZER = train_tokenizer([SENTENCE] * 9, TokenizerConfig(kind="char", vocab_size=300))


def encoder(**differences: Any) -> Encoder:
    """An encoder whose every weight matters, and that looks at what it reads."""
    usual = {"embedding_norm": True, "tie": "output", "dropout": 0.1}
    model = untaught(TOKENIZER, **{**usual, "head": "sequence", "n_labels": 3, **differences})
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.4 * torch.randn_like(weight))
    return model


def classifier(
    labels: tuple[str, ...] = ("a", "b", "c"), sizes: dict[str, Any] | None = None, **classes: Any
) -> Classifier:
    model = encoder(n_labels=len(labels), **(sizes or {}))
    return Classifier(model, TOKENIZER, Classes(labels, **classes))
