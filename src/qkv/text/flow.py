"""Token ids → text as it comes: whole characters only, and nothing of a stop string.

A token may hold a part of a character (bytes), a part of an emoji (a family is five or more code
points) or a part of a stop string. What might still change is held back; all else comes at once.
A tokenizer's decoder is asked about two tokens at a time, so that a long text costs no more a token
than a short one.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from qkv.errors import UserError
from qkv.text.tokenizer import Tokenizer

BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")
LONE_BYTE = re.compile("[\udc80-\udcff]")  # what Python's "surrogateescape" makes of one

JOINER = "\u200d"
LONGEST_CHARACTER = 32  # code points; the longest emoji has ten, and a broken model knows no end


class TextFlow:
    """A text that grows token by token, up to the earliest stop string.

    All that `push` and `finish` return makes up `tokenizer.decode` of all ids, cut before the
    stop; `after` other ids, it is what these add to their text. There is one difference: a byte
    that is part of no character is a U+FFFD by itself, where the library gives up the whole run of
    byte tokens, which may have been shown already.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), after: Sequence[int] = ()
    ) -> None:
        self.stopped = False
        self._reader = _Reader(tokenizer, after)
        self._stops = _checked(stops)
        self._held = ""

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids, and return the text that is certain now."""
        return self._give("".join(map(self._reader.read, ids)), last=False)

    def finish(self) -> str:
        """Return the rest, as no more ids will come."""
        return self._give(self._reader.finish(), last=True)

    def _give(self, text: str, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        end = len(text) if last else _begun(text, self._stops)
        found = _earliest(text, self._stops)
        # A stop string that starts earlier than the one that is found may not be whole yet.
        if found and found[0] <= end:
            self.stopped = True
            self._held = ""
            return text[: found[0]]
        end = end if last else _settled(text, end)
        self._held = text[end:]
        return text[:end]


def cut_at_stop(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], after: Sequence[int] = ()
) -> tuple[list[int], str, bool]:
    """Cut a finished text as `TextFlow` does: the ids used, the text, and whether it stopped.

    The ids go up to and include the one that completes the earliest stop string.
    """
    stops, reader = _checked(stops), _Reader(tokenizer, after)
    parts = [reader.read(id) for id in ids]
    ends = list(accumulate(map(len, parts)))
    text = "".join(parts) + reader.finish()
    found = _earliest(text, stops)
    if not found:
        return list(ids), text, False
    start, end = found
    return list(ids[: bisect_left(ends, end) + 1]), text[:start], True


def _checked(stops: Sequence[str]) -> tuple[str, ...]:
    # A lone string is a sequence too, of characters; it is meant as one stop.
    stops = (stops,) if isinstance(stops, str) else tuple(stops)
    if "" in stops:
        raise UserError("A stop string is empty; it needs a character at least, so leave it out.")
    return stops


def _earliest(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Where the first stop string starts and ends; of two that start there, the shorter one."""
    places = ((text.find(stop), len(stop)) for stop in stops)
    return min(((start, start + size) for start, size in places if start >= 0), default=None)


def _begun(text: str, stops: Sequence[str]) -> int:
    """Where a stop string starts that the text's end may be a part of; else the text's length."""
    longest = max(map(len, stops), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return start
    return len(text)


def _settled(text: str, end: int) -> int:
    """The last place up to `end` where a character ends to which nothing can be added any more."""
    if end < len(text):
        while end and _attaches(text, end):
            end -= 1
        return end
    start = end - 1
    while start > 0 and end - start < LONGEST_CHARACTER and _attaches(text, start):
        start -= 1
    return start if text and _may_grow(text[start]) else end


def _attaches(text: str, place: int) -> bool:
    """Whether the code point at `place`, which is not the first, belongs to the one before it."""
    point = text[place]
    if _is_flag(point):  # two make a flag, and the next two another one
        before = place
        while before and _is_flag(text[before - 1]):
            before -= 1
        return (place - before) % 2 == 1
    return (
        JOINER in (point, text[place - 1])
        or unicodedata.category(point).startswith("M")  # marks, and selectors of a variation
        or "\U0001f3fb" <= point <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= point <= "\U000e007f"  # tags, as in the flag of Scotland
    )


def _may_grow(base: str) -> bool:
    """Whether it is worth waiting for what may follow this code point.

    It is for emoji (and what starts a keycap) and for scripts that write vowels as marks. It is
    not for cased letters, Chinese, kana and Hangul: their marks are rare after NFC, and a mark that
    comes after all comes by itself.
    """
    category = unicodedata.category(base)
    return (
        (category.startswith("S") and not base.isascii())
        or "\U0001f000" <= base <= "\U0001faff"  # emoji that are younger than Python's tables
        or base in "0123456789#*‼⁉〰"
        or (category == "Lo" and unicodedata.east_asian_width(base) != "W")
    )


def _is_flag(point: str) -> bool:
    return "\U0001f1e6" <= point <= "\U0001f1ff"


class _Reader:
    """Ids → text, id by id; bytes wait until they are whole code points or cannot be."""

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        backend = tokenizer._backend
        decode = backend.decoder.decode if backend.decoder else " ".join
        self._decode, self._piece = tokenizer.decode, backend.id_to_token
        self._is_byte_level = decode(["æĪĳ"]) == "我"
        self._has_byte_pieces = decode(["<0x61>"]) == "a"
        self._strips_space = decode(["<0x20>"]) == ""
        # The library makes one U+FFFD of each lone byte piece, but of a byte-level sequence that
        # breaks off just one.
        errors = "replace" if self._is_byte_level else "surrogateescape"
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors)
        added = backend.get_added_tokens_decoder()
        self._skipped = {id for id, token in added.items() if token.special}
        self._before: list[int] = []  # what a piece needs before it, to be no first piece
        self._before_text = ""
        for id in after:
            self.read(id)
        self.finish()

    def read(self, id: int) -> str:
        """The text that is sure after one more id."""
        piece = None if id in self._skipped else self._piece(id)
        if piece is None:
            return ""
        spelt = self._spelt(piece)
        if spelt is None:
            return self.finish() + self._read_text(id)
        text = self._read_bytes(spelt)
        self._before, self._before_text = [id], self._decode([id])
        return text

    def finish(self) -> str:
        """What is left of bytes that nothing completes."""
        return self._read_bytes(b"", last=True)

    def _read_text(self, id: int) -> str:
        whole, alone = self._decode([*self._before, id]), self._decode([id])
        text = whole[len(self._before_text) :]
        if alone:
            self._before, self._before_text = [id], alone
        elif not self._before_text:  # a space that is taken away at the start, for one
            self._before, self._before_text = [*self._before, id], whole
        return text

    def _read_bytes(self, spelt: bytes, last: bool = False) -> str:
        text = LONE_BYTE.sub("\ufffd", self._bytes.decode(spelt, last))
        return text.removeprefix(" ") if self._strips_space and not self._before else text

    def _spelt(self, piece: str) -> bytes | None:
        """The bytes that a piece stands for; None where the decoder must say what its text is."""
        if self._is_byte_level:
            known = all(character in BYTE_LEVEL for character in piece)
            return bytes(map(BYTE_LEVEL.__getitem__, piece)) if known else piece.encode()
        byte = BYTE_PIECE.fullmatch(piece) if self._has_byte_pieces else None
        return bytes.fromhex(byte[1]) if byte else None


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: Latin-1's visible ones for themselves, then those from U+0100.

    Hence "Ġ", U+0120, for the space, the 33rd byte that has no visible character.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    shown = [*visible, *range(0x100, 0x100 + len(hidden))]
    return dict(zip(map(chr, shown), [*visible, *hidden], strict=True))


BYTE_LEVEL = _byte_level_alphabet()
