"""Text ⇄ token ids: tokenizers, trained here or from a `tokenizer.json`, and chat templates."""

from qkv.text.chat import TEMPLATES, ChatTemplate, Ends, Message, check_messages
from qkv.text.flow import TextFlow, cut_at_stop
from qkv.text.pieces import BOS, EOS, MASK, PAD, UNK
from qkv.text.schemes import OUTSIDE, PREFIXES, Scheme, guess_scheme, label_set
from qkv.text.spans import join_words
from qkv.text.template import fill, names
from qkv.text.tokenizer import Tokenizer
from qkv.text.training import train_pair, train_tokenizer
from qkv.text.turns import ROLES, Encoded
from qkv.text.vocabulary import Vocabulary

__all__ = [
    "BOS",
    "EOS",
    "MASK",
    "OUTSIDE",
    "PAD",
    "PREFIXES",
    "ROLES",
    "TEMPLATES",
    "UNK",
    "ChatTemplate",
    "Encoded",
    "Ends",
    "Message",
    "Scheme",
    "TextFlow",
    "Tokenizer",
    "Vocabulary",
    "check_messages",
    "cut_at_stop",
    "fill",
    "guess_scheme",
    "join_words",
    "label_set",
    "names",
    "train_pair",
    "train_tokenizer",
]
