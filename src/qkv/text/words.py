"""Words in plain text: splitting a text into them, and joining them to a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

Span = tuple[int, int]  # the characters [start, end) of a text

# Scripts without spaces between words: as classes that the `tokenizers` library knows, and as
# ranges for Python's `re`, which knows no classes. UNSPACED includes their punctuation.
UNSPACED_CLASSES = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_HAN_KANA = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
HAN_KANA = re.compile(f"[{_HAN_KANA}]")
UNSPACED = re.compile(
    f"[{_HAN_KANA}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\uff00-\uff9f]"
)
JOINER = "\u200d"  # makes one picture of two
SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"


def join_words(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Join words as a sentence has them, and return the text and the span of each.

    There is a space between two words, unless one of them has a script without spaces there.
    """
    text = ""
    spans: list[Span] = []
    for before, word in zip(["", *words], words, strict=False):
        unspaced = before and word and (UNSPACED.match(before[-1]) or UNSPACED.match(word))
        text += "" if unspaced or not spans else " "
        spans.append((len(text), len(text) + len(word)))
        text += word
    return text, spans


def split_words(text: str) -> list[Span]:
    """Find the words of a text as spans of its characters, without white space.

    Letters and digits make words, with hyphens inside (spider-man) and the points of numbers
    (1,000.5). All other characters are apart, though several equal ones (...) stay together. Han
    and Kana characters are words of their own. Accents and other modifiers go with the character
    before them.
    """
    spans: list[Span] = []
    for part in re.finditer(r"\S+", text):
        if part[0].isascii() and part[0].isalnum():  # as most are
            spans.append(part.span())
        else:
            spans += _split_part(text, *part.span())
    return spans


def _split_part(text: str, start: int, end: int) -> list[Span]:
    """Find the words between two indices, without white space between them."""
    spans: list[Span] = []
    before = ""
    for index in range(start, end):
        kind = _kind(text, index, before)
        goes_on = before != "" and _goes_on(text, index, kind, before)
        if goes_on:
            spans[-1] = (spans[-1][0], index + 1)
        else:
            spans.append((index, index + 1))
        if kind != "mark" or not goes_on:
            before = kind
    return spans


def _kind(text: str, index: int, before: str) -> str:
    """Classify a character: mark (of the one before it), letter, unspaced or sign."""
    character = text[index]
    if HAN_KANA.match(character):
        return "unspaced"
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf" or character in SKIN_TONES:
        return "mark"
    inside = before == "letter" and _is_inside(text, index)
    return "letter" if category[0] in "LN" or inside else "sign"


def _is_inside(text: str, index: int) -> bool:
    """Whether a sign after a letter is a part of the word around it."""
    character, after = text[index], text[index + 1 : index + 2]
    if character in "-\u2010\u2011_":
        return after.isalnum() and not HAN_KANA.match(after)
    return character in ".,:" and text[index - 1].isdigit() and after.isdigit()


def _goes_on(text: str, index: int, kind: str, before: str) -> bool:
    """Whether a character belongs to the word that ends right before it."""
    if kind == "sign":
        return before == kind and text[index - 1] in (JOINER, text[index])
    return kind == "mark" or kind == before == "letter"
