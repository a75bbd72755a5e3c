"""Files of weights ⇄ (config, weights, tokenizers): our model folders and other libraries'."""

from qkv.convert.formats import FORMATS, convert, export_problems, save_huggingface, save_qkv
from qkv.convert.model_folder import Prompting, StoredModel, Tokenizers, save_model_folder
from qkv.convert.opening import open_model

__all__ = [
    "FORMATS",
    "Prompting",
    "StoredModel",
    "Tokenizers",
    "convert",
    "export_problems",
    "open_model",
    "save_huggingface",
    "save_model_folder",
    "save_qkv",
]
