"""Which documents of a text are held out for validation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.config import DataConfig
from qkv.data.corpus.documents import Piece, read_documents
from qkv.data.corpus.shards import Chunk, cached
from qkv.data.files import text_files
from qkv.errors import UserError

FEW = 20  # with fewer documents, the end of the text is held out and not some of them
COUNTED = 20_000  # documents that are looked at to choose those held out
LARGE = 1 << 26  # bytes of text; what is found out about more is kept in the cache
SETTINGS = ("text_field", "template", "documents", "bos", "valid_share")


@dataclass(frozen=True)
class HeldOut:
    """Which documents are held out for validation: by content, or the end of the text."""

    below: int = 0
    """Documents whose hash is below this are held out, wherever they occur."""
    after: int = -1
    """Characters of text after which all is held out; -1: documents are."""

    def split(self, pieces: Iterable[Piece], known: str = "") -> Iterator[tuple[str, Piece]]:
        """Tell the split of each piece; the one in which the end begins is cut in two.

        Where the split is `known`, all pieces are of that one.
        """
        use, seen = "train", 0
        for piece in pieces:
            if known:
                yield known, piece
                continue
            if self.after < 0:
                if piece.starts:
                    use = "valid" if _hash(piece.text) < self.below else "train"
                yield use, piece
                continue
            room, seen = self.after - seen, seen + len(piece.text)
            if 0 < room < len(piece.text):
                yield "train", Piece(piece.text[:room], piece.starts, True)
                yield "valid", Piece(piece.text[room:], True, piece.ends)
            else:
                yield ("train", piece) if room > 0 else ("valid", piece)


def _hash(text: str) -> int:
    """Hash what identifies a document: its text or, of a long one, the beginning."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode(), digest_size=8).digest())


def hold_out(config: DataConfig) -> HeldOut:
    """Choose what of the training text is held out; nothing where validation text is given."""
    if not config.text:
        raise UserError("data: no text is given; set text to files, folders or patterns.")
    if config.valid_text:
        return HeldOut()
    if not config.valid_share:
        raise UserError(
            "data: valid_share is 0 and no valid_text is given, so there is nothing to validate "
            "with; set one of them."
        )
    if not is_large(config):
        return _choose(config)
    shards = cached(
        ["held out", text_key(config)],
        lambda done, facts: iter([Chunk(1, {}, vars(_choose(config)))]),
    )
    return HeldOut(**shards.facts)


def is_large(config: DataConfig) -> bool:
    """Whether reading all of the training text takes so long that it is done only once."""
    return sum(path.stat().st_size for path in text_files(config.text)) >= LARGE


def text_key(config: DataConfig) -> list[object]:
    """Return what a text and the way of reading it are known by in the cache."""
    texts = {"train": config.text, "valid": config.valid_text, "test": config.test_text}
    files = {use: list(map(_version, text_files(paths))) for use, paths in texts.items() if paths}
    return [[getattr(config, name) for name in SETTINGS], files]


def _version(path: Path) -> tuple[str, int, int]:
    state = path.stat()
    return str(path.resolve()), state.st_size, state.st_mtime_ns


def _choose(config: DataConfig) -> HeldOut:
    hashes: list[int] = []
    n_characters, is_whole = 0, True
    for piece in read_documents(config.text, config):
        n_characters += len(piece.text)
        if piece.starts:
            if len(hashes) == COUNTED:
                is_whole = False
                break
            hashes.append(_hash(piece.text))
    if not is_whole:
        return HeldOut(below=round(config.valid_share * 2**64))
    if len(hashes) < max(FEW, math.ceil(1 / config.valid_share)):
        return HeldOut(after=max(1, round(n_characters * (1 - config.valid_share))))
    distinct = sorted(set(hashes))
    if len(distinct) < 2:
        raise UserError(
            "data: all documents are the same, so that none can be held out for validation; give "
            "other text, or valid_text."
        )
    count = min(max(1, round(config.valid_share * len(distinct))), len(distinct) - 1)
    return HeldOut(below=distinct[count - 1] + 1)
