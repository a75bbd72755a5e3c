"""Flags of tokens: which of them start a word, and which end a sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, models, normalizers

from qkv.text.pieces import BYTE_LEVEL, BYTE_PIECE
from qkv.text.tokenizer import Tokenizer
from qkv.text.training import CONTINUES
from qkv.text.words import UNSPACED_CLASSES

Flags = npt.NDArray[np.bool_]

# All but letters and digits of scripts with spaces, and joiners, as within می‌خواهم.
NO_LETTER = Regex(rf"[^\p{{L}}\p{{M}}\p{{N}}\u200c\u200d]|[{UNSPACED_CLASSES}]")
CLOSING = r"[\"'”’»)\]}）］】」』》]"
SENTENCE_END = re.compile(rf"[.!?。！？…؟।\n]{CLOSING}*\s*\Z")
# Bytes that are no whole character, as Python's "surrogateescape" writes them. What two bytes
# spell is nearly always a letter of a script with spaces; what three spell, most often is not.
FIRST_OF_TWO = frozenset(map(chr, range(0xDCC3, 0xDCE0)))
WITHIN_CHARACTER = re.compile("[\udc80-\udcbf]+")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Properties of pieces by themselves: a flag for each id of a tokenizer.

    A word is a run of letters and digits. Punctuation, symbols, a bare space, and each piece in a
    script without spaces (Chinese, Thai) are words of their own, and so are special tokens.
    """

    special: Flags
    starts_word: Flags
    """False for pieces that continue a word, if there is one right before."""
    glued: Flags
    """Pieces that always continue what is before: "##ing", and bytes from within a character."""
    within: Flags
    """Pieces of nothing but bytes from within a character; its first byte tells its kind."""
    ends_in_letter: Flags
    """Pieces at whose end a word may go on."""
    ends_sentence: Flags
    ends_in_space: Flags
    closes: Flags
    """Pieces of nothing but closing quotes and brackets."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Compute the flags of a tokenizer's pieces."""
        backend = tokenizer._backend
        pieces = [backend.id_to_token(id) or "" for id in range(len(tokenizer))]
        special = _flags(not piece for piece in pieces)  # an id without a piece is no text either
        special[tokenizer.special_ids] = True
        texts = _texts(pieces, backend)
        letters = _letters(texts)
        within = _flags(WITHIN_CHARACTER.fullmatch(text) for text in texts)
        glued = _flags(WITHIN_CHARACTER.match(text) for text in texts)
        if isinstance(backend.model, models.WordPiece):
            # Its pieces tell by a prefix that they continue a word.
            prefix = backend.model.continuing_subword_prefix or CONTINUES
            glued = continues = _flags(piece.startswith(prefix) for piece in pieces)
        else:
            continues = glued | _flags(text[:1] in letters for text in texts)
        return cls(
            special=special,
            starts_word=special | ~continues,
            glued=glued & ~special,
            within=within & ~special,
            ends_in_letter=_flags(text[-1:] in letters for text in texts) & ~special,
            ends_sentence=_flags(SENTENCE_END.search(text) for text in texts) & ~special,
            ends_in_space=_flags(text[-1:].isspace() for text in texts) & ~special,
            closes=_flags(re.fullmatch(f"{CLOSING}+", text) for text in texts) & ~special,
        )

    def word_starts(self, tokens: npt.NDArray[Any]) -> Flags:
        """Flag the tokens that start a word: the first, each after a special one, and others."""
        positions = np.arange(len(tokens))
        first_byte = np.maximum.accumulate(np.where(self.within[tokens], 0, positions))
        goes_on = self.glued[tokens]
        in_word = self.ends_in_letter[tokens[first_byte[:-1]]]
        goes_on[1:] |= ~self.starts_word[tokens[1:]] & in_word
        goes_on[1:] &= ~self.special[tokens[:-1]]
        goes_on[:1] = False
        starts: Flags = ~goes_on
        return starts

    def sentence_ends(self, tokens: npt.NDArray[Any]) -> Flags:
        """Flag the tokens that end a sentence: not the "." in "U.S.", but a quote after a stop."""
        ends = self.ends_sentence[tokens]
        ends[:-1] &= self.starts_word[tokens[1:]] | self.ends_in_space[tokens[:-1]]
        closed = ends[:-1] & self.closes[tokens[1:]]
        ends[:-1] &= ~closed
        ends[1:] |= closed
        return ends


def _flags(values: Any) -> Flags:
    return np.array([bool(value) for value in values], np.bool_)


def _texts(pieces: list[str], backend: Any) -> list[str]:
    """Decode pieces one by one; "▁" for a space stays, and lone bytes become surrogates."""
    is_byte_level = backend.decoder is not None and backend.decoder.decode(["æĪĳ"]) == "我"
    suffix = getattr(backend.model, "end_of_word_suffix", None) or ""

    def text(piece: str) -> str:
        if suffix and piece.endswith(suffix):
            return piece.removesuffix(suffix) + " "
        if byte := BYTE_PIECE.fullmatch(piece):
            return bytes.fromhex(byte[1]).decode(errors="surrogateescape")
        if is_byte_level and all(character in BYTE_LEVEL for character in piece):
            return bytes(map(BYTE_LEVEL.__getitem__, piece)).decode(errors="surrogateescape")
        return piece

    return list(map(text, pieces))


def _letters(texts: list[str]) -> frozenset[str]:
    """Choose the letters among the first and last characters of texts."""
    ends = {character for text in texts if text for character in (text[0], text[-1])}
    whole = "".join(sorted(end for end in ends if not "\ud800" <= end <= "\udfff"))
    return frozenset(normalizers.Replace(NO_LETTER, "").normalize_str(whole)) | FIRST_OF_TWO
