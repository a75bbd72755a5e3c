"""Plain text as one long stream of token ids, with a part of it held out for validation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.config import DataConfig
from qkv.data.batch import Specials
from qkv.data.corpus.documents import Piece, cut, read_documents
from qkv.data.corpus.shards import Chunk, cached
from qkv.data.files import text_files
from qkv.data.ragged import Indices, Ragged
from qkv.errors import UserError
from qkv.text import Tokenizer

ENCODED_TOGETHER = 1 << 16  # characters, encoded in parallel
FEW = 20  # with fewer documents, the end of the text is held out and not some of them
COUNTED = 20_000  # documents that are looked at to choose those held out
SAMPLED = 1 << 12  # characters of one text for a tokenizer to learn from
USES = ("train", "valid", "test")
SETTINGS = ("text_field", "template", "documents", "bos", "valid_share")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Tokens:
    """A stream of documents, each as BOS (if `bos`), its text, EOS."""

    ids: npt.NDArray[Any]
    documents: Indices
    """Where each document begins."""
    bos: bool
    n_bytes: int = 0
    """UTF-8 bytes of the text."""
    first_bytes: int = 0
    """Those of each document's first token, where no BOS comes before it."""
    digest: str = ""

    @classmethod
    def of(cls, documents: Sequence[Sequence[int]], special: Specials, bos: bool = True) -> Tokens:
        """Join documents in memory."""
        start = [special.bos] if bos else []
        joined = Ragged.of([[*start, *ids, special.eos] for ids in documents])
        return cls(joined.tokens, joined.offsets[:-1], bos)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, count: int) -> Indices:
        """Copy `count` ids from position `start` on."""
        if not 0 <= start <= start + count <= len(self):
            raise IndexError(f"{count} tokens from {start} on of {len(self)}")
        return self.ids[start : start + count].astype(np.int64)

    def starts(self, low: int, high: int) -> Indices:
        """Return the positions from `low` up to `high` at which a document begins."""
        first, last = np.searchsorted(self.documents, (low, min(high, len(self))))
        return np.asarray(self.documents[first:last])


@dataclass(frozen=True)
class TextCorpus:
    """The tokens of plain text in its three splits."""

    train: Tokens
    valid: Tokens
    test: Tokens | None


@dataclass(frozen=True)
class HeldOut:
    """Which documents are held out for validation: by content, or the end of the text."""

    below: int = 0
    """Documents whose hash is below this are held out, wherever they occur."""
    after: int = -1
    """Characters of text after which all is held out; -1: documents are."""

    def split(self, pieces: Iterable[Piece]) -> Iterator[tuple[str, Piece]]:
        """Tell the split of each piece; the one in which the end begins is cut in two."""
        use, seen = "train", 0
        for piece in pieces:
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
    hashes: list[int] = []
    n_characters, is_whole = 0, True
    for piece in _documents(config, config.text):
        n_characters += len(piece.text)
        if piece.starts:
            if len(hashes) == COUNTED:
                is_whole = False
                break
            hashes.append(_hash(piece.text))
    if len(hashes) < max(FEW, math.ceil(1 / config.valid_share)):
        return HeldOut(after=max(1, round(n_characters * (1 - config.valid_share))))
    if not is_whole:
        return HeldOut(below=round(config.valid_share * 2**64))
    distinct = sorted(set(hashes))
    if len(distinct) < 2:
        raise UserError(
            "data: all documents are the same, so that none can be held out for validation; give "
            "other text, or valid_text."
        )
    count = min(max(1, round(config.valid_share * len(distinct))), len(distinct) - 1)
    return HeldOut(below=distinct[count - 1] + 1)


def training_text(config: DataConfig, held_out: HeldOut, most_characters: int) -> Iterator[str]:
    """Yield texts from all over the training files, for a tokenizer to learn from."""
    total = sum(path.stat().st_size for path in text_files(config.text))
    size = max(1, min(SAMPLED, most_characters // 64))
    read = taken = 0

    def advance(n_bytes: int) -> None:
        nonlocal read
        read += n_bytes

    for use, piece in held_out.split(_documents(config, config.text, advance)):
        for text in cut(piece.text, size) if use == "train" else ():
            # What is taken never runs ahead of what is read, so that the last file has its share.
            if taken + len(text) <= most_characters * read / total:
                taken += len(text)
                yield text


def _documents(
    config: DataConfig, paths: Sequence[str], advance: Callable[[int], None] | None = None
) -> Iterator[Piece]:
    return read_documents(
        paths,
        text_field=config.text_field,
        template=config.template,
        documents=config.documents,
        progress=advance,
    )


def load_corpus(
    config: DataConfig,
    tokenizer: Tokenizer,
    held_out: HeldOut,
    progress: Progress | None = None,
) -> TextCorpus:
    """Encode the text that the config names, or open it from the cache.

    `progress` is called with the bytes read so far and in all.
    """
    texts = {"train": config.text, "valid": config.valid_text, "test": config.test_text}
    files = {use: text_files(paths) for use, paths in texts.items() if paths}
    versions = {
        use: [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
        for use, paths in files.items()
    }
    settings = [getattr(config, name) for name in SETTINGS]
    key = ["text", tokenizer.digest, settings, versions, [held_out.below, held_out.after]]
    total = sum(path.stat().st_size for paths in files.values() for path in paths)
    read = 0

    def advance(n_bytes: int) -> None:
        nonlocal read
        read += n_bytes
        if progress:
            progress(read, total)

    def pieces() -> Iterator[tuple[str, Piece]]:
        yield from held_out.split(_documents(config, config.text, advance))
        for use in ("valid", "test"):
            if texts[use]:
                yield from ((use, piece) for piece in _documents(config, texts[use], advance))

    shards = cached(key, partial(_chunks, pieces, tokenizer, config.bos))
    splits = {
        use: Tokens(
            shards[use],
            shards[f"{use}.starts"],
            config.bos,
            shards.facts[f"{use}.bytes"],
            shards.facts[f"{use}.first_bytes"],
            f"{shards.digest}.{use}",
        )
        for use in USES
    }
    for use, what in (("train", "training"), ("valid", "validation"), ("test", "the test")):
        if len(splits[use]) < 2 and (use != "test" or config.test_text):
            raise UserError(
                f"data: {len(splits[use])} tokens are left for {what}, where one must be predicted "
                f"from another; give more text or, to validate with, valid_text or another "
                f"valid_share."
            )
    test = splits["test"] if config.test_text else None
    return TextCorpus(splits["train"], splits["valid"], test)


def _chunks(
    pieces: Callable[[], Iterator[tuple[str, Piece]]],
    tokenizer: Tokenizer,
    bos: bool,
    done: int,
    facts: Mapping[str, int],
) -> Iterator[Chunk]:
    """Encode pieces of text, those after the first `done`."""
    dtype = "<u2" if len(tokenizer) <= 65_535 else "<u4"
    n_tokens = {use: facts.get(f"{use}.tokens", 0) for use in USES}
    for some in _together(islice(pieces(), done, None)):
        ids: dict[str, list[int]] = {use: [] for use in USES}
        starts: dict[str, list[int]] = {use: [] for use in USES}
        new = {f"{use}.{fact}": 0 for use in USES for fact in ("tokens", "bytes", "first_bytes")}
        encoded = tokenizer.encode_many([piece.text for _, piece in some])
        for (use, piece), tokens in zip(some, encoded, strict=True):
            if piece.starts:
                starts[use].append(n_tokens[use] + len(ids[use]))
                ids[use] += [tokenizer.bos_id] if bos else []
                if tokens and not bos:
                    new[f"{use}.first_bytes"] += tokenizer.n_bytes(tokens[0])
            ids[use] += tokens
            ids[use] += [tokenizer.eos_id] if piece.ends else []
            new[f"{use}.bytes"] += len(piece.text.encode())
        for use in USES:
            n_tokens[use] += len(ids[use])
            new[f"{use}.tokens"] = len(ids[use])
        arrays = {use: np.array(ids[use], dtype) for use in USES}
        arrays |= {f"{use}.starts": np.array(starts[use], "<i8") for use in USES}
        yield Chunk(len(some), arrays, new)


def _together(pieces: Iterable[tuple[str, Piece]]) -> Iterator[list[tuple[str, Piece]]]:
    """Group pieces to be encoded in one call."""
    some: list[tuple[str, Piece]] = []
    n_characters = 0
    for use, piece in pieces:
        some.append((use, piece))
        n_characters += len(piece.text)
        if n_characters >= ENCODED_TOGETHER:
            yield some
            some, n_characters = [], 0
    if some:
        yield some
