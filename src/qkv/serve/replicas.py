"""Several copies of the server behind one address, on Ray Serve: processes of many machines.

Each replica has models of its own and answers as one server does. The page is left out: it starts
work and asks for it later, of which another replica would know nothing.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from qkv.ray_cluster import cluster, shares
from qkv.serve.app import create_app
from qkv.serve.models import Models
from qkv.serve.server import address_of, listen
from qkv.serve.settings import ServeSettings


def serve_replicas(
    given: Sequence[str], settings: ServeSettings, n_replicas: int, address: str | None = None
) -> None:
    """Serve models in so many replicas until a signal comes."""
    names = Models(given, settings).names()  # mistakes are told before anything starts
    with listen(settings) as bound:
        url, port = address_of(bound), bound.getsockname()[1]
    ended = threading.Event()

    def build() -> FastAPI:  # in each replica
        return create_app(Models(given, settings), with_page=False)

    with cluster(address, n_replicas, "qkv serve --replicas") as ray:
        from ray import serve

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())  # Ray's own handler has been set by now
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(http_options={"host": settings.host, "port": port})
        deployment: Any = serve.deployment(serve.ingress(build)())
        application = deployment.options(
            num_replicas=n_replicas,
            max_ongoing_requests=settings.max_queue,
            ray_actor_options=shares(ray, n_replicas, settings.device),
        ).bind()
        serve.run(application, name="qkv", route_prefix="/")
        print(f"Serving {', '.join(names)} at {url} in {n_replicas} replicas", flush=True)
        ended.wait()
        serve.shutdown()  # type: ignore[no-untyped-call]
