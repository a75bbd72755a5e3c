"""Where the words of a plain text stand: what a tagger needs of text that nobody has split."""

from __future__ import annotations

import re
import unicodedata

from qkv.text.spans import Span

# Han and Kana, which have no spaces between words: each character is one.
UNSPACED = re.compile(
    "[\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
SPACED = re.compile(r"\S+")
JOINER = "\u200d"  # makes one picture of two
SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"


def split_words(text: str) -> list[Span]:
    """The words of a text as ranges (start, end) of its characters, white space left out.

    Letters and digits make words, with hyphens inside (spider-man) and the points of numbers
    (1,000.5). All other characters stand apart, though several of a kind (...) stay together. Han
    and Kana characters are words of their own. Accents and what else modifies a character go with
    it.
    """
    found: list[Span] = []
    for match in SPACED.finditer(text):
        if match[0].isascii() and match[0].isalnum():  # as most are
            found.append(match.span())
        else:
            found += _split_part(text, *match.span())
    return found


def _split_part(text: str, start: int, end: int) -> list[Span]:
    """The words of a part of a text without white space, which has some on either side."""
    found: list[Span] = []
    before = ""
    for place in range(start, end):
        kind = _kind(text, place, before)
        goes_on = before != "" and _goes_on(text, place, kind, before)
        if goes_on:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
        if kind != "mark" or not goes_on:
            before = kind
    return found


def _kind(text: str, place: int, before: str) -> str:
    """What a character is: mark (of the one before it), letter, unspaced or sign."""
    character = text[place]
    if UNSPACED.match(character):
        return "unspaced"
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf" or character in SKIN_TONES:
        return "mark"
    inside = before == "letter" and _is_inside(text, place)
    return "letter" if category[0] in "LN" or inside else "sign"


def _is_inside(text: str, place: int) -> bool:
    """Whether a sign after a letter is a part of the word around it."""
    character, after = text[place], text[place + 1 : place + 2]
    if character in "-\u2010\u2011_":
        return after.isalnum() and not UNSPACED.match(after)
    return character in ".,:" and text[place - 1].isdigit() and after.isdigit()


def _goes_on(text: str, place: int, kind: str, before: str) -> bool:
    """Whether a character belongs to the word that ends right before it."""
    if kind == "sign":
        return before == kind and text[place - 1] in (JOINER, text[place])
    return kind == "mark" or kind == before == "letter"
