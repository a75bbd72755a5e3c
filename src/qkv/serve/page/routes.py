"""Routes of the page: its files, the structure of a model, and what it asks of a pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import FileResponse

from qkv.inspect.draw.language import Language
from qkv.serve.models import Models
from qkv.serve.page.questions import add_questions
from qkv.serve.page.section_routes import sections_router
from qkv.serve.page.structure import structure

STATIC = Path(__file__).resolve().parent / "static"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


def page_router(models: Models) -> APIRouter:
    """Routes of the page for the models that a server offers."""
    router = APIRouter(tags=["page"])

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return static_file("index.html")

    @router.get("/page/{path:path}", include_in_schema=False)
    async def asset(path: str) -> Response:
        return static_file(path)

    @router.get("/v1/models/{model:path}/structure")
    async def structure_of(model: str, language: Language = "en") -> dict[str, Any]:
        """Stacks, layers, stations and formulas of a model."""
        return await models.run(model, lambda task: structure(model, task, language))

    add_questions(router, models)
    router.include_router(sections_router(models))
    return router


def static_file(path: str) -> Response:
    """A file of the page, and of nothing else."""
    file = (STATIC / path).resolve()
    if not file.is_relative_to(STATIC) or not file.is_file() or file.suffix not in TYPES:
        raise HTTPException(404, f"There is no page/{path}.")
    # A browser asks for the icon anew whenever the address changes, as it does with each letter.
    kept = "max-age=3600" if file.suffix == ".svg" else "no-cache"
    return FileResponse(file, media_type=TYPES[file.suffix], headers={"Cache-Control": kept})
