"""The tokens of a whole corpus in files that are mapped into memory, made once for each text."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qkv.config import DataConfig
from qkv.data.corpus.documents import Piece, read_documents
from qkv.data.files import text_files
from qkv.data.tokens import Tokens, TokenWriter, open_tokens
from qkv.errors import UserError
from qkv.files import write_json
from qkv.text import Tokenizer

if sys.platform != "win32":
    import fcntl

FORMAT = 2  # goes up when the same text would be laid down in another way
BATCH = 1 << 16  # characters that are encoded together, on as many cores as they have pieces
FEW = 20  # with fewer documents, validation is the end of the text and not some of them
SETTINGS = ("text_field", "template", "documents", "bos", "valid_share")
INDEX = "index.json"

Progress = Callable[[int, int], None]
Files = dict[str, list[Path]]


@dataclass(frozen=True)
class Corpus:
    """A text's tokens in their three uses."""

    train: Tokens
    valid: Tokens
    test: Tokens | None


def load_corpus(
    config: DataConfig, tokenizer: Tokenizer, folder: Path, progress: Progress | None = None
) -> Corpus:
    """Open the tokens of the text that `config` names, or make them if they are not there yet.

    They stand under `config.shards`, or else in `folder`, in a folder of their own for each text,
    tokenizer and settings. `progress` hears of the bytes done and of those in all.
    """
    check_corpus(config)
    files = {use: text_files(paths) for use, paths in _texts(config).items()}
    shards = Path(config.shards) if config.shards else folder / "shards"
    place = shards / _fingerprint(config, tokenizer, files)
    found = _open(place)
    if found is None:
        shards.mkdir(parents=True, exist_ok=True)
        with _alone(shards / ".lock"):
            found = _open(place) or _make(place, config, tokenizer, _told(files, progress))
    return found


def _texts(config: DataConfig) -> dict[str, tuple[str, ...]]:
    texts = {"train": config.text, "valid": config.valid_text, "test": config.test_text}
    return {use: paths for use, paths in texts.items() if paths}


def check_corpus(config: DataConfig) -> None:
    """Check that there is text to train on, and some to validate with."""
    if not config.text:
        raise UserError("data: no text is given; set text to files, folders or patterns.")
    if not config.valid_text and not config.valid_share:
        raise UserError(
            "data: valid_share is 0 and no valid_text is given, so there is nothing to validate "
            "with; set one of them."
        )


def _fingerprint(config: DataConfig, tokenizer: Tokenizer, files: Files) -> str:
    """A name that changes with everything that the tokens depend on."""
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / "tokenizer.json"
        tokenizer.save(path)
        pieces = path.read_text(encoding="utf-8")
    sources = {use: [_version(path) for path in paths] for use, paths in files.items()}
    settings = [getattr(config, name) for name in SETTINGS]
    facts = json.dumps([FORMAT, pieces, tokenizer.names, settings, sources])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _version(path: Path) -> tuple[str, int, int]:
    state = path.stat()
    return str(path.resolve()), state.st_size, state.st_mtime_ns


def _told(files: Files, progress: Progress | None) -> Callable[[int], None]:
    """One who hears of further bytes and passes on the sum of them."""
    total = sum(path.stat().st_size for paths in files.values() for path in paths)
    done = 0

    def told(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress:
            progress(done, total)

    return told


def _documents(
    paths: Sequence[str], config: DataConfig, progress: Callable[[int], object] | None = None
) -> Iterator[Piece]:
    return read_documents(paths, [config.text_field], config.template, config.documents, progress)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in such a block; one that is killed is no longer in it."""
    with path.open("w") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(
    place: Path, config: DataConfig, tokenizer: Tokenizer, told: Callable[[int], None]
) -> Corpus:
    """Write everything beside `place`, and move it there when it is whole."""
    # What a kill left, of this text or of another; nobody else is writing here now.
    for leftover in (place, *place.parent.glob(".*.writing")):
        shutil.rmtree(leftover, ignore_errors=True)
    beside = place.with_name(f".{place.name}.writing")
    try:
        beside.mkdir()
        _write(beside, config, tokenizer, told)
        _open(beside)  # complains of a text that is too short
        beside.rename(place)
    except OSError as error:
        error.filename = error.filename or str(place)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    found = _open(place)
    assert found
    return found


def _write(
    folder: Path, config: DataConfig, tokenizer: Tokenizer, told: Callable[[int], None]
) -> None:
    texts = _texts(config)
    cut = "valid" not in texts and _are_few(config)
    names = texts.keys() if cut else texts.keys() | {"valid"}
    dtype = "<u2" if len(tokenizer) <= 65_535 else "<u4"
    bos = tokenizer.bos_id if config.bos else None
    writers = {name: TokenWriter(folder, name, dtype, bos, tokenizer.eos_id) for name in names}
    for use, paths in texts.items():
        held_out = config.valid_share if use == "train" and "valid" not in texts and not cut else 0
        number = -1
        for piece, ids in _encoded(_documents(paths, config, told), tokenizer):
            number += piece.starts
            writers["valid" if _is_held_out(number, held_out) else use].add(piece, ids)
    streams = {name: writer.finish() for name, writer in writers.items()}
    index: dict[str, Any] = {"dtype": dtype, "bos": config.bos, "streams": streams}
    if cut:
        train = _streams(folder, index)["train"]
        end = _end_of_training(train, config.valid_share)
        index["cut"] = end, _bytes_before(end, train, writers["train"].marks, tokenizer)
    write_json(folder / INDEX, index)


def _encoded(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[tuple[Piece, list[int]]]:
    for batch in _batches(pieces):
        yield from zip(batch, tokenizer.encode_many([piece.text for piece in batch]), strict=True)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    n_characters = 0
    for piece in pieces:
        batch.append(piece)
        n_characters += len(piece.text)
        if n_characters >= BATCH:
            yield batch
            batch, n_characters = [], 0
    yield batch


def _are_few(config: DataConfig) -> bool:
    """Whether there are too few documents to hold some of them out."""
    enough = max(FEW, math.ceil(1 / config.valid_share))
    starts = (piece for piece in _documents(config.text, config) if piece.starts)
    return sum(1 for _ in islice(starts, enough)) < enough


def _is_held_out(number: int, share: float) -> bool:
    """Whether a document is for validation: one, at random, of each 1/share in a row."""
    if not share:
        return False
    rows = {int(number * share), int((number + 1) * share)}
    return any(int((row + _chance(row)) / share) == number for row in rows)


@lru_cache(maxsize=2)  # neighbours ask for the same one
def _chance(number: int) -> float:
    """A random number from 0 up to 1, always the same for a `number`."""
    digest = hashlib.blake2b(str(number).encode(), digest_size=4).digest()
    return int.from_bytes(digest) / 2**32


def _end_of_training(tokens: Tokens, valid_share: float) -> int:
    """The place that has all but the last `valid_share` of the text before it."""
    starts = [*tokens.documents.tolist(), len(tokens)]
    n_special = 1 + tokens.bos
    left = int((len(tokens) - n_special * tokens.n_documents) * (1 - valid_share))
    for start, end in pairwise(starts):
        n_text = end - start - n_special
        if left < n_text:
            return start + tokens.bos + left
        left -= n_text
        if not left:
            return end
    return len(tokens)


def _bytes_before(
    place: int, tokens: Tokens, marks: Sequence[tuple[int, int]], tokenizer: Tokenizer
) -> int:
    """Bytes of text before a place; only what lies behind the nearest mark is decoded."""
    mark, n_bytes = marks[bisect_right(marks, (place, tokens.n_bytes)) - 1]
    ids = tokens.read(mark, place - mark).tolist()
    # A cut within a character's bytes makes three of each, and there must not be more than all.
    return min(n_bytes + len(tokenizer.decode(ids).encode()), tokens.n_bytes)


def _open(place: Path) -> Corpus | None:
    """Open what `_write` has written; None where that is missing or did not come to its end."""
    try:
        index = json.loads((place / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    streams = _streams(place, index)
    if "cut" in index:
        whole = streams["train"]
        end, n_bytes = index["cut"]
        streams["train"] = replace(whole, end=end, n_bytes=n_bytes)
        streams["valid"] = replace(whole, begin=end, n_bytes=whole.n_bytes - n_bytes)
    corpus = Corpus(streams["train"], streams["valid"], streams.get("test"))
    for what, tokens in (("training", corpus.train), ("validation", corpus.valid)):
        if len(tokens) < 2:
            raise UserError(
                f"data: {len(tokens)} tokens are left for {what}, where one must be predicted from "
                f"another; give more text, or valid_text, or another valid_share."
            )
    return corpus


def _streams(folder: Path, index: dict[str, Any]) -> dict[str, Tokens]:
    return {
        name: open_tokens(folder, name, index["dtype"], index["bos"], facts)
        for name, facts in index["streams"].items()
    }
