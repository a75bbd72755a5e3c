"""The application: all routes, and what surrounds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec

from fastapi import FastAPI

import qkv
from qkv.serve.api import health
from qkv.serve.models import Models
from qkv.serve.settings import ServeSettings


def create_app(models: Models, settings: ServeSettings) -> FastAPI:
    """Build the application that serves these models."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await models.close()

    app = FastAPI(
        title="qkv", version=qkv.__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.include_router(health.router(models, settings))
    if find_spec("qkv.serve.page") and find_spec("qkv.serve.page.routes"):
        page = import_module("qkv.serve.page.routes")
        app.include_router(page.page_router(models, settings))
    return app
