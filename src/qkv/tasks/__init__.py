"""Tasks: translate, generate and chat, fill and embed, classify, tag, answer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.convert import Prompting, Tokenizers
    from qkv.tasks.answer import Answered, Answerer, Found
    from qkv.tasks.classify import Classification, Classifier
    from qkv.tasks.conversation import Conversation
    from qkv.tasks.encoder import Candidate, Encoder, Filled, Neighbour
    from qkv.tasks.few_shot import Chooser, FewShot
    from qkv.tasks.language import Completion, LanguageModel
    from qkv.tasks.loading import load
    from qkv.tasks.tag import Entity, Tagger, Tagging
    from qkv.tasks.translate import Translation, Translator
    from qkv.tasks.vision import ImageClassifier

__all__ = [
    "Answered",
    "Answerer",
    "Candidate",
    "Chooser",
    "Classification",
    "Classifier",
    "Completion",
    "Conversation",
    "Encoder",
    "Entity",
    "FewShot",
    "Filled",
    "Found",
    "ImageClassifier",
    "LanguageModel",
    "Neighbour",
    "Prompting",
    "Tagger",
    "Tagging",
    "Tokenizers",
    "Translation",
    "Translator",
    "load",
]

# Imported when first asked for: a translator needs nothing of what labels and tags.
_HOMES = {
    "qkv.convert": ("Prompting", "Tokenizers"),
    "qkv.tasks.answer": ("Answered", "Answerer", "Found"),
    "qkv.tasks.classify": ("Classification", "Classifier"),
    "qkv.tasks.conversation": ("Conversation",),
    "qkv.tasks.encoder": ("Candidate", "Encoder", "Filled", "Neighbour"),
    "qkv.tasks.few_shot": ("Chooser", "FewShot"),
    "qkv.tasks.language": ("Completion", "LanguageModel"),
    "qkv.tasks.loading": ("load",),
    "qkv.tasks.tag": ("Entity", "Tagger", "Tagging"),
    "qkv.tasks.translate": ("Translation", "Translator"),
    "qkv.tasks.vision": ("ImageClassifier",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'qkv.tasks' has no attribute {name!r}")
