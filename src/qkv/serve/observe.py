"""Metrics and logs: what was asked, how long it took, and how it ended; never what was said."""

from __future__ import annotations

import json
import logging
import random
import sys
import time
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.serve.errors import error_response
from qkv.serve.hang_up import HungUpError
from qkv.serve.models import Models

LOG = logging.getLogger("qkv.serve")
GONE = 499  # in logs and metrics: the client went away before its answer
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
RANDOM = random.Random()  # to ask the system for each id would let another thread run first
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Metrics:
    """Counters of one server, in a registry of its own."""

    def __init__(self, models: Models) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qkv_requests", "Requests", ["path", "method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "qkv_request_seconds",
            "Seconds until a request was answered",
            ["path"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.tokens = Counter(
            "qkv_tokens", "Tokens read and generated", ["model", "kind"], registry=self.registry
        )
        self.registry.register(_Gauges(models))


class _Gauges:
    """What runs and waits at the moment somebody looks."""

    def __init__(self, models: Models) -> None:
        self.models = models

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Read the numbers off the workers."""
        gauges = {
            "qkv_rows_running": ("Rows of the running batch in use", "n_running"),
            "qkv_queue": ("Jobs and requests that wait", "n_waiting"),
            "qkv_requests_open": ("Requests that are being answered", "n_users"),
        }
        workers = dict(self.models.workers())
        for name, (help_text, attribute) in gauges.items():
            family = GaugeMetricFamily(name, help_text, labels=["model"])
            for model, worker in workers.items():
                family.add_metric([model], getattr(worker, attribute))
            yield family
        loaded = GaugeMetricFamily("qkv_models_loaded", "Models in memory")
        loaded.add_metric([], len(workers))
        yield loaded


def random_id(n_bits: int) -> str:
    """Draw an id, in hexadecimal, that no other request is likely to have."""
    return f"{RANDOM.getrandbits(n_bits):0{n_bits // 4}x}"


def note(request: Request, **facts: object) -> None:
    """Add facts to the log line of a request: its model, its tokens; never its text."""
    request.scope.setdefault("qkv", {}).update(facts)


class Observer:
    """Counts, times and logs each request, and adds the security headers to its answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and write down what came of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        facts = scope.setdefault("qkv", {})
        facts["id"] = random_id(64)
        start, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers["X-Request-Id"] = facts["id"]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except HungUpError:
            status = GONE
        except Exception as error:
            LOG.error("failed", extra={"facts": {"id": facts["id"]}}, exc_info=error)
            if not status:
                await error_response(error)(scope, receive, sending)
        finally:
            self._write(scope, status, time.perf_counter() - start)

    def _write(self, scope: Scope, status: int, seconds: float) -> None:
        # Paths are those of routes: whatever else was asked for must not become a label.
        path = getattr(scope.get("route"), "path", "other")
        facts = scope["qkv"]
        self.metrics.requests.labels(path, scope["method"], str(status)).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        for kind in ("prompt", "completion"):
            count = facts.get(f"{kind}_tokens")
            if count:
                self.metrics.tokens.labels(facts.get("model", ""), kind).inc(count)
        outcome = {"method": scope["method"], "path": path, "status": status}
        LOG.info("request", extra={"facts": {**outcome, "seconds": round(seconds, 4), **facts}})


class JsonFormatter(logging.Formatter):
    """One JSON object a line; of an exception its kind and where it was raised, not its words."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as JSON."""
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage() if not record.exc_info else record.msg,
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[0]:
            frames = traceback.extract_tb(record.exc_info[2])
            content["error"] = record.exc_info[0].__name__
            content["at"] = [f"{frame.filename}:{frame.lineno}" for frame in frames[-8:]]
        return json.dumps(content, ensure_ascii=False, default=str)


def log_as_json() -> None:
    """Write the log of the server, and uvicorn's, to the error stream."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("qkv.serve", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
