"""A server on this machine, for as long as a test needs it."""

from __future__ import annotations

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
