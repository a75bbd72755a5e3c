"""The process: it listens, finishes what runs when it is asked to end, and then ends well."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import torch
import uvicorn

from qkv.errors import UserError
from qkv.serve.app import create_app
from qkv.serve.models import Models
from qkv.serve.observe import log_as_json
from qkv.serve.settings import ServeSettings

BACKLOG = 512  # connections that wait to be accepted
ENDED_BY = 128  # added to a signal's number: the exit code of a process that it ended
TURN = 0.001  # seconds that a thread computes in Python while others wait; 0.005 is Python's own


class Server(uvicorn.Server):
    """A server that ends with code 0 when it has finished what ran; a second signal ends it now."""

    def __init__(self, config: uvicorn.Config, models: Models) -> None:
        super().__init__(config)
        self.models = models

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Listen to signals, and do not raise them again at the end, as uvicorn would."""
        if threading.current_thread() is not threading.main_thread():  # which alone can
            yield
            return
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end, or end at once."""
        if self.should_exit:
            os._exit(ENDED_BY + sig)
        self.should_exit = self.models.is_closing = True


def listen(settings: ServeSettings) -> socket.socket:
    """Bind the address, or say in a sentence why that cannot be done."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where a socket names its protocol. With it, a part
    # of an answer waits until the client has acknowledged the one before, which takes it 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen(BACKLOG)  # so that those who come before all is ready wait
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"The address {settings.host}:{settings.port} cannot be listened on ({reason}); choose "
            f"another with --host and --port."
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """The address that a bound socket is asked at."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(models: Models) -> Server:
    """Build the server of an application, which neither names itself nor writes uvicorn's logs."""
    config = uvicorn.Config(
        create_app(models),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=15,
    )
    return Server(config, models)


def serve(models: Models) -> None:
    """Listen and answer until a signal comes."""
    # A core is left to the event loop and the reader's browser: threads that wait for one that has
    # none make a step ten times as long.
    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) - 1)))
    # The event loop and each model's thread let go of the interpreter hundreds of times a second.
    # While a step is compiled, which is Python alone, they would wait out its whole turn each time.
    sys.setswitchinterval(TURN)
    bound = listen(models.settings)
    server = make_server(models)
    log_as_json()
    print(f"Serving {', '.join(models.names())} at {address_of(bound)}", flush=True)
    asyncio.run(server.serve([bound]))
