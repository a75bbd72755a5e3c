"""What a server is told when it starts: where it listens, who may ask, and how much."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServeSettings:
    """Address, access and limits of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None  # that every request must bring; None: anybody may ask
    cors: tuple[str, ...] = ()  # origins whose pages may ask from a browser
    allowed_hosts: tuple[str, ...] = ()  # names of this server beside those of this machine
    device: str = "auto"
    dtype: str | None = None
    memory: int = 0  # bytes of weights that may be loaded at the same time; 0: no limit
    max_body: int = 2**20  # bytes of a request
    body_seconds: float = 10.0  # until a request's body must have arrived
    max_seconds: float = 300.0  # until a request must be answered
    max_tokens: int = 16_384  # of one request: prompts and outputs, all rows together
    max_rows: int = 64  # texts, prompts or outputs of one request
    max_queue: int = 256  # requests that a model has at the same time; more are turned away

    @property
    def is_local(self) -> bool:
        """Whether the server listens on this machine's own address alone."""
        return self.host in LOOPBACK
