"""Other people's checkpoints ⇄ ours: name tables and layout rules."""

from qkv.convert.convert import FORMATS, convert, save_huggingface, save_qkv
from qkv.convert.opening import load, open_model

__all__ = ["FORMATS", "convert", "load", "open_model", "save_huggingface", "save_qkv"]
