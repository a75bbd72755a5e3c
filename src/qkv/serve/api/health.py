"""Whether the server lives, and whether it can be asked."""

from __future__ import annotations

from fastapi import APIRouter

from qkv.serve.models import Models
from qkv.serve.settings import ServeSettings


def router(models: Models, settings: ServeSettings) -> APIRouter:
    """Routes for whoever watches the server."""
    routes = APIRouter(tags=["health"])

    @routes.get("/health")
    async def health() -> dict[str, str]:
        """Say that the process lives."""
        return {"status": "ok"}

    @routes.get("/ready")
    async def ready() -> dict[str, object]:
        """Say that requests are accepted, and which models are loaded."""
        return {"status": "ok", "loaded": list(models.workers())}

    return routes
