"""Downloading one file with a part that is kept, so that a kill costs nothing that has arrived."""

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
    """The address gave no answer, or broke off without a byte of what was missing."""


def download(address: str, part: Path, size: int, progress: Progress | None = None) -> None:
    """Append to `part` what it lacks of the `size` bytes at an address.

    A connection that breaks off is opened again for as long as each try brings something.
    """
    have = _size(part)
    while have < size:
        try:
            _append(address, part, size, progress)
        except UnreachableError:
            if _size(part) <= have:
                raise
        if _size(part) <= have:
            raise UnreachableError("the address has fewer bytes than expected")
        have = _size(part)


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
    """(place, bytes) of what the address has from `start` on; all that fails is its fault."""
    request = Request(address, headers={"Range": f"bytes={start}-"} if start else {})
    place = start
    try:
        with urlopen(request, timeout=TIMEOUT, context=_context()) as response:
            if response.status != 206:
                place = 0
            while chunk := response.read(CHUNK):
                yield place, chunk
                place += len(chunk)
    except (OSError, HTTPException, ValueError) as error:
        raise UnreachableError(str(error)) from error


def _context() -> ssl.SSLContext:
    """Trust what pip trusts, as far as the environment says it."""
    for variable in CERTIFICATES:
        if (path := os.environ.get(variable)) and Path(path).is_file():
            return ssl.create_default_context(cafile=path)
    return ssl.create_default_context()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
