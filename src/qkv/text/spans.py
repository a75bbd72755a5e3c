"""The places of tokens in the text that they spell, as half-open ranges of its characters."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tokenizers import Encoding, PreTokenizedString, Regex
from tokenizers.normalizers import Normalizer

Span = tuple[int, int]

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
ADDED_SPACE = (" ", "▁", "Ġ")  # as ours, SentencePiece's and GPT-2's pieces write a space
UNSPACED = re.compile(  # scripts that put no space between words, and their punctuation
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff00-\uff9f\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Spelt:
    """The tokens of a text, each with the characters (start, end) of it that it stands for."""

    ids: list[int]
    spans: list[Span]


@dataclass(frozen=True)
class SpeltWords(Spelt):
    """The tokens of words, with the number of each one's word; places are in the joined text."""

    word: list[int]


def locate(text: str, encoding: Encoding, normalizer: Normalizer | None) -> list[Span]:
    """Place an encoding's tokens in the text as it was before it was normalised.

    White space around what a token stands for is no part of its place, unless there is nothing
    else. All bytes of a character have the character's place.
    """
    tokens, offsets = encoding.tokens, encoding.offsets
    if any(end - start > 1 and BYTE.fullmatch(tokens[i]) for i, (start, end) in enumerate(offsets)):
        offsets = _spread_bytes(tokens, offsets, _characters(text, normalizer))
    starts = [start for start, _ in offsets]
    spans = [
        _trimmed(text, start, _with_marks(text, end, starts, offsets)) for start, end in offsets
    ]
    if starts[:2] == [0, 0] and tokens[0] in ADDED_SPACE and not text[0].isspace():
        spans[0] = (0, 0)  # a space that the text does not have
    return spans


def _spread_bytes(
    tokens: Sequence[str], offsets: Sequence[Span], characters: Sequence[tuple[str, Span]]
) -> list[Span]:
    """Give bytes the places of their characters: Unigram takes unknown ones in a row for one."""
    starts = [start for _, (start, _) in characters]
    spread: list[Span] = []
    for (start, end), run in groupby(zip(offsets, tokens, strict=True), key=lambda pair: pair[0]):
        found = [BYTE.fullmatch(token) for _, token in run]
        spelt = bytes(int(byte[1], 16) for byte in found if byte)
        inside = characters[bisect_left(starts, start) : bisect_left(starts, end)]
        places = [place for character, place in inside for _ in character.encode()]
        # The space that is added to a first word has the place of the word's first character.
        at = "".join(character for character, _ in inside).encode().rfind(spelt)
        whole = len(spelt) == len(found) and at >= 0
        spread += places[at : at + len(spelt)] if whole else [(start, end)] * len(found)
    return spread


def _characters(text: str, normalizer: Normalizer | None) -> list[tuple[str, Span]]:
    """Each character of the normalised text, with the place that it has in the original one."""
    whole = PreTokenizedString(text)
    if normalizer is not None:
        whole.normalize(normalizer.normalize)
    whole.split(lambda _, part: part.split(Regex("(?m:.)"), "isolated"))
    return [(character, place) for character, place, _ in whole.get_splits("original", "char")]


def _with_marks(text: str, end: int, starts: Sequence[int], offsets: Sequence[Span]) -> int:
    """Move a token's end past marks and letters that stand after it and belong to no token.

    Where "e" and an accent become "é", or the accent is dropped, the library places the "e" alone.
    """
    following = bisect_left(starts, end)
    if following and offsets[following - 1][1] > end:
        return end
    limit = starts[following] if following < len(starts) else len(text)
    while end < limit and unicodedata.category(text[end])[0] in "LM":
        end += 1
    return end


def _trimmed(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    if not part.strip():
        return start, end
    return end - len(part.lstrip()), start + len(part.rstrip())


def join_words(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Join words as a sentence has them, and say where each stands.

    There is a space between two words, unless one of them has a script without spaces there.
    """
    parts: list[str] = []
    places: list[Span] = []
    end = 0
    for before, word in zip(["", *words], words, strict=False):
        unspaced = before and word and (UNSPACED.match(before[-1]) or UNSPACED.match(word))
        space = "" if unspaced or not places else " "
        parts += [space, word]
        start = end + len(space)
        end = start + len(word)
        places.append((start, end))
    return "".join(parts), places


def own_tokens(whole: Spelt, places: Sequence[Span], spaced: bool) -> list[Spelt | None]:
    """Part the tokens of joined words by word; None where a word shares one with its neighbour.

    Where a text's first word is `spaced` too, a token of the space between two words goes with the
    word after it, whose first one it is in every place. Else it goes with the word before it, so
    that a word's first token is always a part of it.
    """
    starts = [start for start, _ in places]
    own: list[Spelt | None] = [Spelt([], []) for _ in places]
    for id, (start, end) in zip(whole.ids, whole.spans, strict=True):
        first = bisect_right(starts, start) - 1
        if spaced and first + 1 < len(places) and start >= places[first][1]:
            first += 1
        last = max(first, bisect_right(starts, max(start, end - 1)) - 1)
        if last > first:
            own[first : last + 1] = [None] * (last + 1 - first)
        elif (spelt := own[first]) is not None:
            spelt.ids.append(id)
            spelt.spans.append((start, end))
    return own


def moved(spelt: Spelt, by: int) -> Spelt:
    """The tokens of a text that starts so many characters into another."""
    return Spelt(spelt.ids, [(start + by, end + by) for start, end in spelt.spans])
