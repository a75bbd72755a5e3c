"""Token ids → text while they are generated: whole characters only, and nothing of a stop string.

A token may hold a part of a character (bytes), of an emoji (a family is five or more code points)
or of a stop string. Text that may still change is held back; all other text comes at once.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from tokenizers import Regex
from tokenizers.decoders import DecodeStream
from tokenizers.pre_tokenizers import Split

from qkv.errors import UserError
from qkv.text.tokenizer import Tokenizer

LONE_BYTE = re.compile("[\udc80-\udcff]")  # as Python's "surrogateescape" writes it
CHARACTERS = Split(Regex(r"\X"), "isolated")  # as people see them, of several code points
LONGEST_CHARACTER = 32  # code points; the longest emoji has ten, but a broken model may never stop


class TextStream:
    """A text that grows token by token, up to the earliest stop string.

    All that `push` and `finish` return makes up `tokenizer.decode` of all ids, cut before the stop
    string; with ids `after` which they come, it is the text that they add. One thing differs: a
    byte piece that is part of no character becomes one U+FFFD, where `decode` replaces every byte
    of its run.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), after: Sequence[int] = ()
    ) -> None:
        self.stopped = False
        self._decoder = _Decoder(tokenizer, after)
        self._stops = _checked(stops)
        self._held = ""

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids, and return the text that can no longer change."""
        return self._release("".join(map(self._decoder.read, ids)), last=False)

    def finish(self) -> str:
        """Return the rest of the text, as no more ids will come."""
        return self._release(self._decoder.finish(), last=True)

    def _release(self, text: str, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        end = len(text) if last else _possible_stop(text, self._stops)
        stop = _earliest(text, self._stops)
        # A stop string that starts before the one found may not be complete yet.
        if stop and stop[0] <= end:
            self.stopped = True
            return text[: stop[0]]
        end = end if last else _last_boundary(text, end)
        self._held = text[end:]
        return text[:end]


def cut_at_stop(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], after: Sequence[int] = ()
) -> tuple[list[int], str, bool]:
    """Cut finished ids as `TextStream` does: the ids used, their text, and whether it stopped.

    The ids include the one that completes the earliest stop string.
    """
    stops, decoder = _checked(stops), _Decoder(tokenizer, after)
    parts = [decoder.read(id) for id in ids]
    text = "".join(parts) + decoder.finish()
    stop = _earliest(text, stops)
    if not stop:
        return list(ids), text, False
    n_used = bisect_left(list(accumulate(map(len, parts))), stop[1]) + 1
    return list(ids[:n_used]), text[: stop[0]], True


class _Decoder:
    """The text that each id adds, from the library's `DecodeStream` and what that cannot do.

    It has no end, so that the ids which it still holds back are decoded here. And the library turns
    a whole run of byte pieces ("<0xE6>") into U+FFFD where one byte is part of no character, though
    characters of the run were shown before: so bytes are collected here, and the stream gets those
    of whole characters, or of a U+FFFD in place of a byte that belongs to none.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int]) -> None:
        self._backend, self._skipped = tokenizer._backend, set(tokenizer.special_ids)
        self._byte_ids = tokenizer.byte_ids
        self._bytes = {id: bytes([byte]) for byte, id in enumerate(self._byte_ids)}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._shown: list[int] = []  # the ids of the last text that came
        self._held: list[int] = []
        self._stream = DecodeStream(skip_special_tokens=True)
        for id in after:
            self.read(id)
        if self.finish():
            self._stream = DecodeStream(self._shown, skip_special_tokens=True)

    def read(self, id: int) -> str:
        """Return the text that is certain after one more id."""
        if id in self._skipped or self._backend.id_to_token(id) is None:
            return ""
        if id in self._bytes:
            return self._step(self._characters(self._bytes[id]))
        return self._step([*self._characters(b"", last=True), id])

    def finish(self) -> str:
        """Return the text of the ids that are still held back."""
        text = self._step(self._characters(b"", last=True))
        shown = self._backend.decode(self._shown)
        text += self._backend.decode(self._shown + self._held)[len(shown) :]
        self._held = []
        return text

    def _characters(self, content: bytes, last: bool = False) -> list[int]:
        """Take further bytes, and return the byte pieces of the characters that they complete."""
        text = LONE_BYTE.sub("\ufffd", self._utf8.decode(content, last))
        return [self._byte_ids[byte] for byte in text.encode()]

    def _step(self, ids: list[int]) -> str:
        self._held += ids
        text = self._stream.step(self._backend, ids) if ids else None
        if text is None:
            return ""
        self._shown, self._held = self._held, []
        return str(text)


def _checked(stops: Sequence[str]) -> tuple[str, ...]:
    # A single string is a sequence too, of characters; it is meant as one stop.
    stops = (stops,) if isinstance(stops, str) else tuple(stops)
    if "" in stops:
        raise UserError("A stop string is empty; it needs at least one character, or leave it out.")
    return stops


def _earliest(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Find where the first stop string starts and ends; the shorter one where two start."""
    starts = ((text.find(stop), len(stop)) for stop in stops)
    return min(((start, start + size) for start, size in starts if start >= 0), default=None)


def _possible_stop(text: str, stops: Sequence[str]) -> int:
    """Find where the text's end may be the beginning of a stop string; else the text's length."""
    longest = max(map(len, stops), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return start
    return len(text)


def _last_boundary(text: str, end: int) -> int:
    """Find the last index up to `end` where a character ends that nothing can be added to."""
    starts = [start for _, (start, _) in CHARACTERS.pre_tokenize_str(text)]
    start = max((start for start in starts if start < end), default=end)
    if end < len(text):
        return end if end in starts else start
    waits = end - start < LONGEST_CHARACTER and start < end and _may_grow(text[start])
    return start if waits else end


def _may_grow(base: str) -> bool:
    """Whether to wait for code points that may follow this one in the same character.

    True of emoji (and what starts a keycap) and of scripts that write vowels as marks. Not of cased
    letters, Chinese, kana and Hangul: marks after them are rare in NFC, and come by themselves.
    """
    category = unicodedata.category(base)
    return (
        (category.startswith("S") and not base.isascii())
        or "\U0001f000" <= base <= "\U0001faff"  # emoji that Python's tables may not know yet
        or base in "0123456789#*‼⁉〰"
        or (category == "Lo" and unicodedata.east_asian_width(base) != "W")
    )
