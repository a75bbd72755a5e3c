"""Text → ids by looking up runs of characters, each of which the tokenizers library sees once.

Our tokenizers cut text into runs (`qkv.text.training.RUNS`) that no piece reaches across, and a
corpus has few different ones: the library spends its time on normalising and cutting each text
anew. Texts of common characters are cut here instead, with the same result; others, and those of
other people's tokenizers, go through the library.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from qkv.config import TokenizerConfig
from qkv.text.tokenizer import Tokenizer, encoding
from qkv.text.training import normalizer, pre_tokenizer

MOST_RUNS = 1 << 16  # that are remembered; a corpus' common ones come early
# Characters of which normal forms, case and kind are the same in the library and in Python: those
# of alphabets without marks of their own, Chinese characters, and common signs.
LETTERS = "A-Za-zÀ-ÖØ-öø-ÿĀ-įĴ-ľŁ-ňŊ-žЁА-яё"
HAN = "一-龥"
PUNCTUATION = "!\"#%&'()*,-./:;?@[\\]_{}‘’“”–—…、。《》「」！（），：；？"
SYMBOLS = "$+<=>^`|~"
SPACES = " \n\t"


def _class(characters: str) -> str:
    return f"[{re.escape(characters)}]"


KNOWN = re.compile(
    f"(?:[{LETTERS}{HAN}0-9]|{_class(PUNCTUATION)}|{_class(SYMBOLS)}|{_class(SPACES)})*"
)
SPACED_FIRST = re.compile(f"[{LETTERS}0-9 ]")  # what gets a space before it as a text's first
# RUNS for these characters alone
CUT = re.compile(
    "|".join(
        (
            rf" ?[{LETTERS}]+(?:['’][{LETTERS}]+)*",
            rf" ?[{HAN}]+",
            r" ?[0-9]",
            rf" ?(?:\#|{'|'.join(f'{re.escape(sign)}+' for sign in PUNCTUATION if sign != '#')})",
            rf" ?{_class(SYMBOLS)}+",
            r"\s+(?!\S)|\s",
        )
    )
)


class RunEncoder:
    """Encodes many texts with a tokenizer, to the ids that `Tokenizer.encode_many` returns.

    They come as the bytes of an array of `dtype`, which is quicker than lists of numbers.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.dtype = np.dtype("<u2" if len(tokenizer) <= 65_535 else "<u4")
        self._config = _config_of(tokenizer._backend)
        self._ids = _RunIds(tokenizer._backend, self.dtype)

    def encode_many(self, texts: Sequence[str]) -> list[bytes]:
        """Encode texts, those of common characters run by run."""
        prepared = [self._normalized(text) for text in texts]
        left = [text for text, ready in zip(texts, prepared, strict=True) if ready is None]
        others = iter(self.tokenizer.encode_many(left) if left else ())
        ids_of, cut = self._ids.__getitem__, CUT.findall
        return [
            np.array(next(others), self.dtype).tobytes()
            if text is None
            else b"".join(map(ids_of, cut(text)))
            for text in prepared
        ]

    def _normalized(self, text: str) -> str | None:
        """Return a text as the tokenizer's normalizer does; None for one of other characters."""
        config = self._config
        if config is None or not KNOWN.fullmatch(text):
            return None
        if not text.isascii() and config.normalize != "none":
            text = unicodedata.normalize("NFC" if config.normalize == "nfc" else "NFKC", text)
        if config.lowercase:
            text = text.lower()
        return f" {text}" if SPACED_FIRST.match(text) else text


class _RunIds(dict[str, bytes]):
    """Ids by run, each encoded when it is first asked for."""

    def __init__(self, backend: Backend, dtype: np.dtype[Any]) -> None:
        self._tokenize, self._dtype = backend.model.tokenize, dtype

    def __missing__(self, run: str) -> bytes:
        with encoding():
            tokens = self._tokenize(run)
        ids = np.array([token.id for token in tokens], self._dtype).tobytes()
        if len(self) < MOST_RUNS:
            self[run] = ids
        return ids


def _config_of(backend: Backend) -> TokenizerConfig | None:
    """Return what a tokenizer of ours was trained with; None for one that has other steps."""
    is_random = isinstance(backend.model, models.BPE) and bool(backend.model.dropout)
    added = backend.get_added_tokens_decoder().values()
    if is_random or not all(token.special for token in added):
        return None
    if _state(backend.pre_tokenizer) != _state(pre_tokenizer("bpe")):
        return None
    plain = TokenizerConfig(kind="bpe")
    forms: tuple[Literal["nfc", "nfkc", "none"], ...] = ("nfc", "nfkc", "none")
    for normalize, lowercase in product(forms, (False, True)):
        config = replace(plain, normalize=normalize, lowercase=lowercase)
        if _state(backend.normalizer) == _state(normalizer(config)):
            return config
    return None


def _state(step: Normalizer | PreTokenizer | None) -> bytes:
    """Return all settings of a step; nothing for one that is not there."""
    return b"" if step is None else step.__getstate__()
