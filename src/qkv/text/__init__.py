"""Text ⇄ token ids: tokenizers, trained here or from a `tokenizer.json`, and chat templates."""

from qkv.text.chat import TEMPLATES, ChatTemplate, Ends, Message, check_messages
from qkv.text.flow import TextFlow, cut_at_stop
from qkv.text.pieces import BOS, EOS, PAD, UNK
from qkv.text.template import fill, names
from qkv.text.tokenizer import Tokenizer
from qkv.text.training import train_pair, train_tokenizer
from qkv.text.turns import Encoded

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "TEMPLATES",
    "UNK",
    "ChatTemplate",
    "Encoded",
    "Ends",
    "Message",
    "TextFlow",
    "Tokenizer",
    "check_messages",
    "cut_at_stop",
    "fill",
    "names",
    "train_pair",
    "train_tokenizer",
]
