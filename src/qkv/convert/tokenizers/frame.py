"""The special tokens around a text or a pair, as a model reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkv.text import Tokenizer
from qkv.text.tokenizer import library_errors


@dataclass(frozen=True)
class Frame:
    """before A after, or before A between B after; with segments, the second text has kind 1."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    segments: bool = False


def read_frame(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> Frame:
    """What a tokenizer of theirs puts around texts: as its settings say, or else its own file."""
    flags = {"add_bos_token": "start", "add_eos_token": "end"}
    if flags.keys() & settings.keys():
        begin, end = (
            (tokenizer.special_id(tokenizer.names[role]),)
            if settings.get(flag) and role in tokenizer.names
            else ()
            for flag, role in flags.items()
        )
        return Frame(begin, end + begin, end)
    with library_errors("the tokenizer cannot read 'a'", "fetch it again"):
        encoding = tokenizer._backend.encode("a", "a")
    parts: list[list[int]] = [[], [], []]
    seen = 0
    for id, text in zip(encoding.ids, encoding.sequence_ids, strict=True):
        if text is None:
            parts[seen].append(id)
        else:
            seen = text + 1
    before, between, after = map(tuple, parts)
    return Frame(before, between, after)
