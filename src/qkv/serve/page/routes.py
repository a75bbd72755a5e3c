"""Routes of the page: its files, the structure of a model, and what it asks of a pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import FileResponse

from qkv.serve.page.heads import heads, roles
from qkv.serve.page.looks import AnswerAsk, TraceAsk, answer, quantities
from qkv.serve.page.section_routes import sections_router
from qkv.serve.page.structure import structure
from qkv.serve.page.traces import Ask
from qkv.serve.page.worked import CellAsk, worked

STATIC = Path(__file__).resolve().parent / "static"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_router(models: Any, settings: Any = None) -> APIRouter:
    """Routes of the page for the models that a server offers."""
    router = APIRouter(tags=["page"])

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return static_file("index.html")

    @router.get("/page/{path:path}", include_in_schema=False)
    async def asset(path: str) -> Response:
        return static_file(path)

    @router.get("/v1/models/{model:path}/structure")
    async def structure_of(model: str) -> dict[str, Any]:
        """Stacks, layers, stations and formulas of a model."""
        return await models.run(model, lambda task: structure(model, task))

    @router.post("/v1/models/{model:path}/answer")
    async def answer_of(model: str, ask: AnswerAsk) -> dict[str, Any]:
        """What the model answers, with the candidates of each output."""
        return await models.run(model, answer, ask)

    @router.post("/v1/models/{model:path}/trace", response_class=Response)
    async def trace_of(model: str, ask: TraceAsk) -> Response:
        """Quantities of a pass: a header's length, the header as JSON, little-endian blocks."""
        content = await models.run(model, quantities, ask)
        return Response(content, media_type="application/octet-stream")

    @router.post("/v1/models/{model:path}/cell")
    async def cell_of(model: str, ask: CellAsk) -> dict[str, Any]:
        """One cell of a quantity with the numbers of its formula."""
        return await models.run(model, worked, ask)

    @router.post("/v1/models/{model:path}/heads")
    async def heads_of(model: str, ask: Ask) -> dict[str, Any]:
        """Kinds of attention, their sinks, and what heads do."""
        return await models.run(model, heads, ask)

    @router.post("/v1/models/{model:path}/roles")
    async def roles_of(model: str, ask: Ask) -> dict[str, Any]:
        """What each head does: it looks at the token before, at repetitions, at its source …"""
        return await models.run(model, roles, ask)

    router.include_router(sections_router(models, settings))
    return router


def static_file(path: str) -> Response:
    """A file of the page, and of nothing else."""
    file = (STATIC / path).resolve()
    if not file.is_relative_to(STATIC) or not file.is_file() or file.suffix not in TYPES:
        raise HTTPException(404, f"There is no page/{path}.")
    return FileResponse(file, media_type=TYPES[file.suffix], headers=HEADERS)
