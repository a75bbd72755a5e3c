"""The text of single tokens, as clients are shown it beside log-probabilities."""

from __future__ import annotations

import re

from qkv.text import Tokenizer

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Spells tokens one at a time, as they are within a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._known = tokenizer, dict[int, str]()
        self._special = set(tokenizer.special_ids)
        self._before = tokenizer.encode("a")  # else a decoder may drop the space before a word
        self._n_before = len(tokenizer.decode(self._before))

    def text(self, token: int) -> str:
        """The text that a token adds; its name where that is none, or a part of a character."""
        if token not in self._known:
            self._known[token] = self._spell(token)
        return self._known[token]

    def first_text(self, token: int) -> str:
        """The text of a token that a text begins with: a decoder may drop the space before it."""
        return self._tokenizer.decode([token]) or self.text(token)

    def is_text(self, token: int) -> bool:
        """Whether a token adds to the text, as special ones do not."""
        return token not in self._special

    def bytes(self, token: int) -> list[int] | None:
        """The UTF-8 bytes of a token; None where they are not known."""
        text = self.text(token)
        if byte := BYTE.fullmatch(text):
            return [int(byte[1], 16)]
        return None if token in self._special else list(text.encode())

    def _spell(self, token: int) -> str:
        name = self._tokenizer.tokens([token])[0]
        if token in self._special:
            return name
        text = self._tokenizer.decode([*self._before, token])[self._n_before :]
        return name if not text or "\ufffd" in text else text
