"""Resumable download: bytes that have arrived are kept and never fetched again."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

Progress = Callable[[int, int], None]  # bytes that have arrived, bytes in all
CHUNK = 1 << 18
TIMEOUT = 60.0  # seconds of silence
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")  # in pip's order


class UnreachableError(Exception):
    """The address gave no answer, or none of the missing bytes."""


def download(address: str, part: Path, size: int, progress: Progress | None = None) -> None:
    """Append to `part` the bytes that it lacks of the `size` bytes at an address.

    A connection that breaks is opened again as long as each try brings further bytes.
    """
    n_bytes = _size(part)
    while n_bytes < size:
        try:
            _append(address, part, size, progress)
        except UnreachableError:
            if _size(part) <= n_bytes:
                raise
        if _size(part) <= n_bytes:
            raise UnreachableError("the address has fewer bytes than expected")
        n_bytes = _size(part)


def _append(address: str, part: Path, size: int, progress: Progress | None) -> None:
    start = _size(part)
    with part.open("ab") as file:
        for begin, chunk in _chunks(address, start):
            if begin != file.tell():
                file.truncate(begin)  # a server that knows no ranges starts at 0
                file.seek(begin)
            file.write(chunk)
            if progress:
                progress(file.tell(), size)


def _chunks(address: str, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) from `start` on; every failure here is the address's."""
    request = Request(address, headers={"Range": f"bytes={start}-"} if start else {})
    offset = start
    try:
        with urlopen(request, timeout=TIMEOUT, context=_context()) as response:
            if response.status != 206:
                offset = 0
            while chunk := response.read(CHUNK):
                yield offset, chunk
                offset += len(chunk)
    except (OSError, HTTPException, ValueError) as error:
        raise UnreachableError(str(error)) from error


def _context() -> ssl.SSLContext:
    """Trust the certificates that pip's environment variables name."""
    for variable in CERTIFICATES:
        if (path := os.environ.get(variable)) and Path(path).is_file():
            return ssl.create_default_context(cafile=path)
    return ssl.create_default_context()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
