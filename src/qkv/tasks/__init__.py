"""What a person asks for: translate, generate and chat."""

from qkv.tasks.conversation import Conversation
from qkv.tasks.folder import Prompting, Tokenizers
from qkv.tasks.language import Completion, LanguageModel
from qkv.tasks.load import load
from qkv.tasks.translate import Translation, Translator

__all__ = [
    "Completion",
    "Conversation",
    "LanguageModel",
    "Prompting",
    "Tokenizers",
    "Translation",
    "Translator",
    "load",
]
