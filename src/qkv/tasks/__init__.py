"""Tasks: translate, generate and chat, fill and embed, classify, tag, answer."""

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
