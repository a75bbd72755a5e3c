"""The guard: who may ask, and how much at a time, before any route is reached."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.serve.errors import ApiError, error_response
from qkv.serve.settings import LOOPBACK, ServeSettings

# Paths that tell nothing of anybody: the page itself asks for the key.
OPEN = ("/", "/health", "/ready", "/docs", "/openapi.json", "/favicon.ico")
OPEN_FOLDER = "/page/"
MOST_DRAINED = 1 << 24  # bytes of a refused body that are read, so that its sender hears why
KEY_IN_BODY = ("/translate", "/detect", "/languages")  # as LibreTranslate's clients send it


class Guard:
    """Checks the host, the origin and the key of a request, and reads its body within limits."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            self._check_origin(headers)
            if not self._is_open(scope["path"]) and scope["path"] not in KEY_IN_BODY:
                self._check_key(headers, b"")
            body = await self._read(headers, receive)
            if scope["path"] in KEY_IN_BODY:
                self._check_key(headers, body)
        except ApiError as error:
            # The rest of a body that was not read to its end must not be waited for.
            hangs_up = {"Connection": "close"} if error.status in (408, 413) else None
            await error_response(error, hangs_up)(scope, receive, send)
            return
        await self.app(scope, _replay(body, receive), send)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse other names of this machine, by which a foreign page could reach it (DNS)."""
        settings = self.settings
        if not settings.is_local and not settings.allowed_hosts:
            return  # it is known by names that nobody told it, and asks for a key
        host = _host_name(headers.get("host", ""))
        if host not in {*LOOPBACK, settings.host, *settings.allowed_hosts}:
            raise ApiError(
                403,
                "This server does not know itself by the name in the Host header; use localhost, "
                "or start it with --allow-host.",
                "unknown_host",
            )

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse pages of other sites, unless they were allowed."""
        origin = headers.get("origin")
        if origin is None or origin in self.settings.cors or "*" in self.settings.cors:
            return
        if urlsplit(origin).netloc != headers.get("host"):
            raise ApiError(
                403,
                "Pages of another origin may not ask this server; start it with --cors ORIGIN.",
                "foreign_origin",
            )

    def _is_open(self, path: str) -> bool:
        return path in OPEN or path.startswith(OPEN_FOLDER)

    def _check_key(self, headers: Mapping[str, str], body: bytes) -> None:
        key = self.settings.api_key
        if key is None:
            return
        kind, _, in_header = headers.get("authorization", "").partition(" ")
        given = in_header.encode("latin-1")  # as bytes of headers are read
        if kind.lower() != "bearer":
            given = _key_in(body).encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(given, key.encode()):
            raise ApiError(
                401,
                "This server needs its API key; send it as `Authorization: Bearer KEY`.",
                "invalid_api_key",
            )

    async def _read(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        """Read the whole body, within the limits of bytes and of time."""
        length = headers.get("content-length", "")
        if not length and "transfer-encoding" not in headers:
            return b""
        most = self.settings.max_body
        body = bytearray()
        n_bytes = 0
        # What is too large is still read for a while: many clients do not look for the answer
        # before they have sent everything, and to hang up on them would be to send none.
        if length.isdecimal() and MOST_DRAINED < int(length) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ApiError(400, "The client went away before its request was complete.")
                    n_bytes += len(message.get("body", b""))
                    if n_bytes <= most:
                        body += message.get("body", b"")
                    is_over = not message.get("more_body", False)
                    if n_bytes > (most if is_over else max(most, MOST_DRAINED)):
                        raise _too_large(most)
                    if is_over:
                        return bytes(body)
        except TimeoutError as error:
            raise ApiError(
                408,
                f"The request's body did not arrive within {self.settings.body_seconds:g} seconds; "
                f"send it again.",
                "body_timeout",
            ) from error


def _too_large(most: int) -> ApiError:
    return ApiError(
        413,
        f"The request's body is larger than {most:,} bytes; send less at a time.",
        "body_too_large",
    )


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _key_in(body: bytes) -> str:
    """The `api_key` of a JSON object or a form, or ""."""
    text = body.decode("utf-8", "replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = {name: values[0] for name, values in parse_qs(text).items()}
    key = content.get("api_key") if isinstance(content, dict) else None
    return key if isinstance(key, str) else ""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand out a body that was read, and then what else comes: the client's leaving."""
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
