"""For those who watch the server: /health, /ready, /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from qkv.serve.models import Models
from qkv.serve.observe import Metrics


def router(models: Models, metrics: Metrics) -> APIRouter:
    """Routes for whoever watches the server."""
    routes = APIRouter(tags=["health"])

    @routes.get("/health")
    async def health() -> dict[str, str]:
        """Say that the process lives."""
        return {"status": "ok"}

    @routes.get("/ready")
    async def ready() -> JSONResponse:
        """Say whether requests are accepted, and which models are loaded."""
        if models.is_closing:
            return JSONResponse({"status": "closing", "loaded": []}, 503)
        return JSONResponse({"status": "ok", "loaded": list(models.workers())})

    @routes.get("/metrics", response_class=Response)
    async def show_metrics() -> Response:
        """Counts, latencies, tokens, rows and queues, as Prometheus reads them."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return routes
