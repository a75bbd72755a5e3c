"""Text ⇄ token ids: tokenizers, trained here or from a `tokenizer.json`, and chat templates."""

from qkv.text.chat import ROLES, TEMPLATES, ChatTemplate, Encoded, Ends, Message, check_messages
from qkv.text.detokenize import TextStream, cut_at_stop
from qkv.text.pieces import BOS, EOS, MASK, PAD, UNK
from qkv.text.record_template import fill, names
from qkv.text.runs import RunEncoder
from qkv.text.tagging import OUTSIDE, PREFIXES, Scheme, guess_scheme, label_set
from qkv.text.tokenizer import Tokenizer
from qkv.text.training import train_pair, train_tokenizer
from qkv.text.vocabulary import Vocabulary
from qkv.text.words import join_words

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
    "RunEncoder",
    "Scheme",
    "TextStream",
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
