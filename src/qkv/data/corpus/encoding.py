"""Text → token ids, in one process or in many; the result has the same bytes with any number."""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv.child_process import start_worker
from qkv.config import DataConfig
from qkv.data.corpus.documents import Piece, Span, read_documents, read_span, spans
from qkv.data.corpus.held_out import LARGE, HeldOut
from qkv.data.corpus.shards import Chunk
from qkv.data.files import text_files
from qkv.errors import UserError
from qkv.text import RunEncoder, Tokenizer

USES = ("train", "valid", "test")
COUNTS = ("tokens", "bytes", "first_bytes")
ENCODED_TOGETHER = 1 << 16  # characters in one call of the tokenizer
SENT_TOGETHER = 1 << 18  # characters of a text that is read here and encoded elsewhere
IN_FLIGHT = 2  # jobs for each process: one that it works on, one that waits
WORKER = Path(__file__).with_name("encoding_worker.py")
Pieces = Sequence[tuple[str, Piece]]
"""Pieces of text with their splits."""
Advance = Callable[[int], None]


@dataclass(frozen=True)
class ChunkJob:
    """Text that becomes one chunk: a span of a file, or pieces that were read already."""

    source: int
    """Number of the file or stream that it comes from."""
    text: Span | Pieces
    use: str = ""
    """The split of a span; empty: its documents are divided."""

    @property
    def n_bytes(self) -> int:
        """Bytes of its file that are read when it is encoded."""
        return (self.text.end or 0) - self.text.start if isinstance(self.text, Span) else 0


@dataclass(frozen=True)
class ChunkEncoder:
    """Encodes jobs; documents begin at positions that count from the beginning of the chunk."""

    tokenizer: Tokenizer
    config: DataConfig
    held_out: HeldOut

    @cached_property
    def _runs(self) -> RunEncoder:
        return RunEncoder(self.tokenizer)

    def __call__(self, job: ChunkJob) -> Chunk:
        """Encode a job; errors name the line of the whole file."""
        if not isinstance(job.text, Span):
            return self._encode(job, job.text)
        try:
            pieces = read_span(job.text, self.config)
            return self._encode(job, self.held_out.split(pieces, job.use))
        except UserError:
            pieces = read_span(job.text, self.config, line=_line_at(job.text))
            return self._encode(job, self.held_out.split(pieces, job.use))

    def _encode(self, job: ChunkJob, pieces: Iterable[tuple[str, Piece]]) -> Chunk:
        dtype = self._runs.dtype
        parts: dict[str, list[bytes]] = {use: [] for use in USES}
        starts: dict[str, list[int]] = {use: [] for use in USES}
        facts = {f"{use}.{count}": 0 for use in USES for count in COUNTS}
        for some in together(pieces, ENCODED_TOGETHER):
            self._add(some, parts, starts, facts)
        arrays: dict[str, npt.NDArray[Any]]
        arrays = {use: np.frombuffer(b"".join(parts[use]), dtype) for use in USES}
        arrays |= {f"{use}.starts": np.array(starts[use], "<i8") for use in USES}
        return Chunk(1, arrays, {**facts, f"chunks.{job.source}": 1})

    def _add(
        self,
        some: Pieces,
        parts: dict[str, list[bytes]],
        starts: dict[str, list[int]],
        facts: dict[str, int],
    ) -> None:
        """Encode pieces in one call; note where documents start, and count tokens and bytes."""
        tokenizer, dtype = self.tokenizer, self._runs.dtype
        has_bos = self.config.bos
        bos = np.array([tokenizer.bos_id] if has_bos else [], dtype).tobytes()
        eos = np.array([tokenizer.eos_id], dtype).tobytes()
        n_tokens = {use: facts[f"{use}.tokens"] for use in USES}
        encoded = self._runs.encode_many([piece.text for _, piece in some])
        for (use, (text, begins, ends)), ids in zip(some, encoded, strict=True):
            if begins:
                starts[use].append(n_tokens[use])
                if ids and not has_bos:
                    first = int(np.frombuffer(ids, dtype, 1)[0])
                    facts[f"{use}.first_bytes"] += tokenizer.n_bytes(first)
                ids = bos + ids
            ids = ids + eos if ends else ids
            parts[use].append(ids)
            n_tokens[use] += len(ids) // dtype.itemsize
            facts[f"{use}.bytes"] += len(text) if text.isascii() else len(text.encode())
        facts.update({f"{use}.tokens": count for use, count in n_tokens.items()})


def together(pieces: Iterable[tuple[str, Piece]], least: int) -> Iterator[Pieces]:
    """Group pieces until each group has at least so many characters."""
    some: list[tuple[str, Piece]] = []
    n_characters = 0
    for use, piece in pieces:
        some.append((use, piece))
        n_characters += len(piece.text)
        if n_characters >= least:
            yield some
            some, n_characters = [], 0
    if some:
        yield some


def _line_at(span: Span) -> int:
    left, line = span.start, 1
    with span.path.open("rb") as file:
        while left and (block := file.read(min(left, 1 << 20))):
            left -= len(block)
            line += block.count(b"\n")
    return line


def jobs(
    config: DataConfig, held_out: HeldOut, done: Mapping[str, int], advance: Advance
) -> Iterator[ChunkJob]:
    """Divide all text into jobs, without those that are done: of each source the first few.

    Spans are read where they are encoded. What can only be read from its beginning, and a text
    whose end is held out, is read here.
    """
    counts = {int(name.partition(".")[2]): n for name, n in done.items() if name[:7] == "chunks."}
    for number, (use, paths) in enumerate(_sources(config, held_out)):
        if number < max(counts, default=0):  # it was finished before a later one was begun
            advance(sum(path.stat().st_size for path in paths))
            continue
        source = _jobs_of(config, held_out, use, paths, number, advance)
        for skipped in islice(source, counts.get(number, 0)):
            advance(skipped.n_bytes)
        yield from source


def _sources(config: DataConfig, held_out: HeldOut) -> Iterator[tuple[str, list[Path]]]:
    """Yield each file with its split; all of a text together whose end is held out."""
    training = text_files(config.text)
    if held_out.after < 0:
        yield from (("", [path]) for path in training)
    else:
        yield "", training
    for use, paths in (("valid", config.valid_text), ("test", config.test_text)):
        yield from ((use, [path]) for path in (text_files(paths) if paths else ()))


def _jobs_of(
    config: DataConfig,
    held_out: HeldOut,
    use: str,
    paths: Sequence[Path],
    number: int,
    advance: Advance,
) -> Iterator[ChunkJob]:
    """Divide a file into spans; what is in none, or in several files, is read here."""

    def read(pieces: Iterable[Piece]) -> Iterator[ChunkJob]:
        divided = held_out.split(pieces, use)
        return (ChunkJob(number, some) for some in together(divided, SENT_TOGETHER))

    if len(paths) > 1 or (not use and held_out.after >= 0):
        yield from read(read_documents(paths, config, advance))
        return
    for span in spans(paths[0], config.documents):
        if span.end is not None:
            yield ChunkJob(number, span, use)
        else:
            yield from read(read_span(span, config, advance))


def encode_all(
    encoder: ChunkEncoder, work: Iterable[ChunkJob], processes: int
) -> Iterator[tuple[ChunkJob, Chunk]]:
    """Encode jobs, and yield each with its chunk in the order in which they come."""
    if processes == 1:
        yield from ((job, encoder(job)) for job in work)
        return
    idle: SimpleQueue[_Worker] = SimpleQueue()
    workers = [_Worker(encoder) for _ in range(processes)]
    for worker in workers:
        idle.put(worker)

    def encode(job: ChunkJob) -> Chunk:
        worker = idle.get()
        try:
            return worker.encode(job)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(processes)
    begun: deque[tuple[ChunkJob, Future[Chunk]]] = deque()
    try:
        for job in work:
            begun.append((job, threads.submit(encode, job)))
            if len(begun) == IN_FLIGHT * processes:
                first, future = begun.popleft()
                yield first, future.result()
        yield from ((job, future.result()) for job, future in begun)
    finally:
        for worker in workers:
            worker.stop()
        threads.shutdown(cancel_futures=True)


class _Worker:
    """A process that encodes one job after the other."""

    def __init__(self, encoder: ChunkEncoder) -> None:
        self._process = start_worker(WORKER, {"TOKENIZERS_PARALLELISM": "false"})
        self._send(encoder)

    def encode(self, job: ChunkJob) -> Chunk:
        """Encode a job there; what goes wrong is raised here."""
        try:
            self._send(job)
            assert self._process.stdout is not None
            answer = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise self._ended() from error
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _send(self, content: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(content, self._process.stdin)
        self._process.stdin.flush()

    def _ended(self) -> UserError:
        code = self._process.wait()
        return UserError(
            f"A process that encodes text has ended (exit code {code}), perhaps for want of "
            f"memory; set processes under [data] to fewer and run the command again, which goes on "
            f"from there."
        )

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what it held was for a process that is gone
                    pipe.close()


def n_processes(config: DataConfig, n_bytes: int) -> int:
    """Return how many processes encode a text: as many as set, or one a core for a large one."""
    if config.processes:
        return config.processes
    if n_bytes < LARGE:
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
