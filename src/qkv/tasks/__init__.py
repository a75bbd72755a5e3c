"""What a person asks for: translate."""

from qkv.tasks.folder import Tokenizers
from qkv.tasks.load import load
from qkv.tasks.translate import Translation, Translator

__all__ = ["Tokenizers", "Translation", "Translator", "load"]
