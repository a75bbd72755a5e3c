"""Text ⇄ token ids: tokenizers that are trained here or loaded from a `tokenizer.json`."""

from qkv.text.pieces import BOS, EOS, PAD, UNK
from qkv.text.tokenizer import Tokenizer
from qkv.text.training import train_pair, train_tokenizer

__all__ = ["BOS", "EOS", "PAD", "UNK", "Tokenizer", "train_pair", "train_tokenizer"]
