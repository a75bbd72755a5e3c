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
    "Prompting": "qkv.convert",
    "Tokenizers": "qkv.convert",
    "Answered": "qkv.tasks.answer",
    "Answerer": "qkv.tasks.answer",
    "Found": "qkv.tasks.answer",
    "Classification": "qkv.tasks.classify",
    "Classifier": "qkv.tasks.classify",
    "Conversation": "qkv.tasks.conversation",
    "Candidate": "qkv.tasks.encoder",
    "Encoder": "qkv.tasks.encoder",
    "Filled": "qkv.tasks.encoder",
    "Neighbour": "qkv.tasks.encoder",
    "Chooser": "qkv.tasks.few_shot",
    "FewShot": "qkv.tasks.few_shot",
    "Completion": "qkv.tasks.language",
    "LanguageModel": "qkv.tasks.language",
    "load": "qkv.tasks.loading",
    "Entity": "qkv.tasks.tag",
    "Tagger": "qkv.tasks.tag",
    "Tagging": "qkv.tasks.tag",
    "Translation": "qkv.tasks.translate",
    "Translator": "qkv.tasks.translate",
    "ImageClassifier": "qkv.tasks.vision",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv.tasks' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
