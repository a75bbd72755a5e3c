"""Spans of tokens: which characters of its text each token covers."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tokenizers import Encoding, PreTokenizedString, Regex
from tokenizers.normalizers import Normalizer

from qkv.text.pieces import BYTE_PIECE
from qkv.text.words import Span

ADDED_SPACE = (" ", "▁", "Ġ")  # as our, SentencePiece's and GPT-2's pieces write a space


@dataclass(frozen=True)
class TokenSpans:
    """The tokens of a text, each with the span of characters that it covers."""

    ids: list[int]
    spans: list[Span]


@dataclass(frozen=True)
class WordTokens(TokenSpans):
    """The tokens of words, each with its word's number; spans are in the joined text."""

    word: list[int]


def locate(text: str, encoding: Encoding, normalizer: Normalizer | None) -> list[Span]:
    """Find the spans of an encoding's tokens in the text as it was before normalisation.

    Spans neither start nor end with white space, unless they hold nothing else. All bytes of a
    character have the character's span.
    """
    tokens, offsets = encoding.tokens, encoding.offsets
    # Unigram gives all unknown characters in a row one offset; other byte pieces have their own.
    if any(
        end - start > 1 and BYTE_PIECE.fullmatch(token)
        for token, (start, end) in zip(tokens, offsets, strict=True)
    ):
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
    """Give each byte of a run with one offset the span of its character."""
    starts = [start for _, (start, _) in characters]
    spread: list[Span] = []
    for (start, end), run in groupby(zip(offsets, tokens, strict=True), key=lambda pair: pair[0]):
        matches = [BYTE_PIECE.fullmatch(token) for _, token in run]
        content = bytes(int(byte[1], 16) for byte in matches if byte)
        inside = characters[bisect_left(starts, start) : bisect_left(starts, end)]
        spans = [span for character, span in inside for _ in character.encode()]
        # The space that is added to a first word has the span of the word's first character.
        at = "".join(character for character, _ in inside).encode().rfind(content)
        whole = len(content) == len(matches) and at >= 0
        spread += spans[at : at + len(content)] if whole else [(start, end)] * len(matches)
    return spread


def _characters(text: str, normalizer: Normalizer | None) -> list[tuple[str, Span]]:
    """List the characters of the normalised text, with their spans in the original one."""
    whole = PreTokenizedString(text)
    if normalizer is not None:
        whole.normalize(normalizer.normalize)
    whole.split(lambda _, part: part.split(Regex("(?m:.)"), "isolated"))
    return [(character, span) for character, span, _ in whole.get_splits("original", "char")]


def _with_marks(text: str, end: int, starts: Sequence[int], offsets: Sequence[Span]) -> int:
    """Move a token's end past following marks and letters that belong to no token.

    Where "e" and an accent become "é", or the accent is dropped, the library's offset is the "e".
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


def tokens_by_word(
    whole: TokenSpans, words: Sequence[Span], spaced: bool
) -> list[TokenSpans | None]:
    """Part the tokens of joined words by word; None where a word shares one with its neighbour.

    With `spaced`, where a text's first word gets a space too, the token of a space between two
    words belongs to the second, whose first token it always is. Else it belongs to the first, so
    that a word's first token is always a part of it.
    """
    starts = [start for start, _ in words]
    parted: list[TokenSpans | None] = [TokenSpans([], []) for _ in words]
    for id, (start, end) in zip(whole.ids, whole.spans, strict=True):
        first = bisect_right(starts, start) - 1
        if spaced and first + 1 < len(words) and start >= words[first][1]:
            first += 1
        last = max(first, bisect_right(starts, max(start, end - 1)) - 1)
        if last > first:
            parted[first : last + 1] = [None] * (last + 1 - first)
        elif (tokens := parted[first]) is not None:
            tokens.ids.append(id)
            tokens.spans.append((start, end))
    return parted
