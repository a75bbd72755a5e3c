"""Plain text as one long stream of token ids, with a part of it held out for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.config import DataConfig, TokenizerConfig
from qkv.data.batch import Specials
from qkv.data.corpus.documents import Span, cut, read_documents, read_span, spans
from qkv.data.corpus.encoding import USES, ChunkEncoder, encode_all, jobs, n_processes
from qkv.data.corpus.held_out import HeldOut, is_large, text_key
from qkv.data.corpus.shards import Chunk, Shards, cached
from qkv.data.files import text_files
from qkv.data.ragged import Indices, Ragged
from qkv.errors import UserError
from qkv.text import Tokenizer, train_tokenizer

SAMPLED = 1 << 12  # characters of one text for a tokenizer to learn from
N_SAMPLES = 512  # places of a large text that a tokenizer learns from
Progress = Callable[[int, int], None]
Check = Callable[[int, int], None]


def _trusted(low: int, high: int) -> None:
    """Take items as they are, where they are in memory."""


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
    check_ids: Check = field(default=_trusted, repr=False)
    """Raises where ids from `low` to `high` differ from what was written."""
    check_documents: Check = field(default=_trusted, repr=False)

    @classmethod
    def of(cls, documents: Sequence[Sequence[int]], special: Specials, bos: bool = True) -> Tokens:
        """Join documents in memory."""
        start = [special.bos] if bos else []
        joined = Ragged.of([[*start, *ids, special.eos] for ids in documents])
        return cls(joined.tokens, joined.offsets[:-1], bos)

    @classmethod
    def of_texts(cls, texts: Sequence[str], tokenizer: Tokenizer) -> Tokens:
        """Encode documents in memory."""
        special = Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
        return cls.of(tokenizer.encode_many(texts), special)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, count: int) -> Indices:
        """Copy `count` ids from position `start` on."""
        if not 0 <= start <= start + count <= len(self):
            raise IndexError(f"{count} tokens from {start} on of {len(self)}")
        self.check_ids(start, start + count)
        return self.ids[start : start + count].astype(np.int64)

    def starts(self, low: int, high: int) -> Indices:
        """Return the positions from `low` up to `high` at which a document begins."""
        first, last = np.searchsorted(self.documents, (low, min(high, len(self))))
        self.check_documents(max(0, first - 1), last + 1)
        return np.asarray(self.documents[first:last])


@dataclass(frozen=True)
class TextCorpus:
    """The tokens of plain text in its three splits."""

    train: Tokens
    valid: Tokens
    test: Tokens | None


def training_text(config: DataConfig, held_out: HeldOut, most_characters: int) -> Iterator[str]:
    """Yield texts from all over the training files, for a tokenizer to learn from."""
    if is_large(config) and held_out.after < 0 and (places := _places(config)):
        yield from _sampled(config, held_out, most_characters, places)
        return
    total = sum(path.stat().st_size for path in text_files(config.text))
    size = max(1, min(SAMPLED, most_characters // 64))
    read = taken = 0

    def advance(n_bytes: int) -> None:
        nonlocal read
        read += n_bytes

    for use, piece in held_out.split(read_documents(config.text, config, advance)):
        for text in cut(piece.text, size) if use == "train" else ():
            # What is taken never runs ahead of what is read, so that the last file has its share.
            if taken + len(text) <= most_characters * read / total:
                taken += len(text)
                yield text


def _places(config: DataConfig) -> list[Span]:
    """Choose spans all over a text; none where some of it can only be read from a beginning."""
    chosen: list[Span] = []
    paths = text_files(config.text)
    distance = max(1, sum(path.stat().st_size for path in paths) // N_SAMPLES)
    before = 0
    for path in paths:
        for span in spans(path, config.documents):
            if span.end is None:
                return []
            if (before + span.end) // distance > before // distance:
                chosen.append(span)
            before += span.end - span.start
    return chosen


def _sampled(
    config: DataConfig, held_out: HeldOut, most_characters: int, places: Sequence[Span]
) -> Iterator[str]:
    """Yield the beginning of each span, as many characters of one as of another."""
    for span in places:
        left = most_characters // len(places)
        for use, piece in held_out.split(read_span(span, config)):
            if use == "train" and left > 0:
                yield piece.text[:left]
                left -= len(piece.text)
            if left <= 0:
                break


def text_tokenizer(
    config: DataConfig, held_out: HeldOut, wanted: TokenizerConfig, texts: Iterable[str]
) -> Tokenizer:
    """Train a tokenizer on some of the training text; that of a large text is kept in the cache."""
    if wanted.path or not is_large(config):
        return train_tokenizer(texts, wanted)

    def chunks(done: int, facts: Mapping[str, int]) -> Iterator[Chunk]:
        content = train_tokenizer(texts, wanted).to_json().encode()
        yield Chunk(1, {"json": np.frombuffer(content, np.uint8)})

    key = ["tokenizer", text_key(config), vars(held_out), asdict(wanted)]
    return Tokenizer.from_json(cached(key, chunks)["json"].tobytes().decode())


def load_corpus(
    config: DataConfig, tokenizer: Tokenizer, held_out: HeldOut, progress: Progress | None = None
) -> TextCorpus:
    """Encode the text that the config names, or open it from the cache.

    `progress` is called with the bytes read so far and in all.
    """
    key = ["tokens", tokenizer.digest, text_key(config), [held_out.below, held_out.after]]
    encoder = ChunkEncoder(tokenizer, config, held_out)
    shards = cached(key, partial(_chunks, encoder, progress or (lambda read, total: None)))
    splits = {use: _split(shards, use, config.bos) for use in USES}
    for use, what in (("train", "training"), ("valid", "validation"), ("test", "the test")):
        if len(splits[use]) < 2 and (use != "test" or config.test_text):
            raise UserError(
                f"data: {len(splits[use])} tokens are left for {what}, where one must be predicted "
                f"from another; give more text or, to validate with, valid_text or another "
                f"valid_share."
            )
    test = splits["test"] if config.test_text else None
    return TextCorpus(splits["train"], splits["valid"], test)


def _split(shards: Shards, use: str, bos: bool) -> Tokens:
    return Tokens(
        shards[use],
        shards[f"{use}.starts"],
        bos,
        shards.facts[f"{use}.bytes"],
        shards.facts[f"{use}.first_bytes"],
        f"{shards.digest}.{use}",
        partial(shards.check, use),
        partial(shards.check, f"{use}.starts"),
    )


def _chunks(
    encoder: ChunkEncoder, progress: Progress, done: int, facts: Mapping[str, int]
) -> Iterator[Chunk]:
    """Encode the text that is not encoded yet; documents start where the chunks before end."""
    config = encoder.config
    paths = [*config.text, *config.valid_text, *config.test_text]
    total = sum(path.stat().st_size for path in text_files(paths))
    n_tokens = {use: facts.get(f"{use}.tokens", 0) for use in USES}
    read = 0

    def advance(n_bytes: int) -> None:
        nonlocal read
        read += n_bytes
        progress(read, total)

    work = jobs(config, encoder.held_out, facts, advance)
    for job, chunk in encode_all(encoder, work, n_processes(config, total)):
        starts = {f"{use}.starts": chunk.arrays[f"{use}.starts"] + n_tokens[use] for use in USES}
        for use in USES:
            n_tokens[use] += chunk.facts[f"{use}.tokens"]
        yield Chunk(1, {**chunk.arrays, **starts}, chunk.facts)
        advance(job.n_bytes)
