"""The application: all routes, and what surrounds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import qkv
from qkv.serve import errors
from qkv.serve.api import docs, health, libretranslate, openai, tasks
from qkv.serve.guard import Guard
from qkv.serve.models import Models
from qkv.serve.observe import Metrics, Observer
from qkv.serve.page.routes import page_router


def create_app(models: Models, with_page: bool = True) -> FastAPI:
    """Build the application that serves these models, with or without the page."""
    settings = models.settings

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await models.close()

    app = FastAPI(
        title="qkv",
        summary="Transformers of this machine: an API shaped like OpenAI's, and tasks.",
        version=qkv.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    metrics = Metrics(models)
    errors.install(app)
    for routes in (
        openai.router(models),
        libretranslate.router(models),
        tasks.router(models),
        health.router(models, metrics),
    ):
        app.include_router(routes)
    if with_page:
        app.include_router(page_router(models))
    docs.install(app, models.names()[0])
    # The last one added is the first that a request meets.
    app.add_middleware(Guard, settings=settings)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(Observer, metrics=metrics)
    return app
