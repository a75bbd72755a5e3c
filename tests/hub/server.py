"""A server of files on this machine: with ranges or without, and one that breaks off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Protocol, TypeVar


class Answering(Protocol):
    """One who answers requests, and is told where it is reached."""

    address: str

    def answer(self, request: Any) -> None: ...


S = TypeVar("S", bound=Answering)


class Files:
    """What the server has, what it was asked for, and where it breaks off."""

    def __init__(self, **content: bytes) -> None:
        self.content = content
        self.asked: list[str] = []  # the ranges, "" for a whole file
        self.ranges = True
        self.break_after: int | None = None  # bytes of each answer
        self.address = ""

    def answer(self, request: Any) -> None:
        wanted = request.headers.get("Range", "")
        self.asked.append(wanted)
        content = self.content.get(request.path.strip("/"))
        if content is None:
            request.send_error(404)
            return
        given = re.fullmatch(r"bytes=(\d+)-", wanted) if self.ranges else None
        rest = content[int(given[1]) :] if given else content
        request.send_response(206 if given else 200)
        request.send_header("Content-Length", str(len(rest)))
        request.end_headers()
        request.wfile.write(rest[: self.break_after])


@contextmanager
def serving(files: S) -> Iterator[S]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.answer(self)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.address = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
