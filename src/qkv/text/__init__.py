"""Text ⇄ token ids: tokenizers, trained here or from a `tokenizer.json`, and chat templates."""

from qkv.text.chat import TEMPLATES, ChatTemplate, Encoded, Ends, Message, check_messages
from qkv.text.detokenize import TextStream, cut_at_stop
from qkv.text.pieces import BOS, EOS, PAD, UNK
from qkv.text.record_template import fill, names
from qkv.text.tokenizer import Tokenizer
from qkv.text.training import train_pair, train_tokenizer

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
    "TextStream",
    "Tokenizer",
    "check_messages",
    "cut_at_stop",
    "fill",
    "names",
    "train_pair",
    "train_tokenizer",
]
