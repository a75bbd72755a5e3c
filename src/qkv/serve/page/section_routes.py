"""Routes of the page that are about no pass: positions, training runs, labs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from qkv import shelf
from qkv.errors import UserError
from qkv.inspect.draw.language import Language
from qkv.serve.models import Models
from qkv.serve.page import comparing
from qkv.serve.page.jobs import Jobs, Runs, lab_figure, lab_list, lab_state

Length = Annotated[int, Query(ge=2, le=256)]


class SampleAsk(BaseModel):
    """A text for the weights that a run has so far."""

    text: str = Field("", max_length=400)


def sections_router(models: Models) -> APIRouter:
    """Routes for the models that a server offers."""
    router = APIRouter(tags=["page"])
    _position_routes(router, models)
    jobs = Jobs()
    is_local = models.settings.is_local
    _training_routes(router, runs := Runs(_folders(models), jobs), is_local)
    _lab_routes(router, jobs)
    router.include_router(_work_routes(runs, is_local))
    return router


def _position_routes(router: APIRouter, models: Models) -> None:
    @router.get("/v1/models/{model:path}/rotary")
    async def rotary_of(model: str, length: Length = 32) -> dict[str, Any]:
        """Angles of rotary positions."""
        return await models.run(model, comparing.rotary_angles, length)

    @router.get("/v1/positions")
    async def positions(length: Length = 64, width: Length = 64) -> dict[str, Any]:
        """Sinusoidal position vectors and their products."""
        if width % 2:
            raise UserError("The width of a position's vector is even: sines and cosines in pairs.")
        return comparing.position_table(length, width)


def _training_routes(router: APIRouter, runs: Runs, is_local: bool) -> None:
    @router.get("/v1/runs")
    async def list_runs() -> dict[str, Any]:
        """Runs that can be watched."""
        return {"data": runs.names(), "running": runs.jobs.running()}

    @router.get("/v1/runs/{name}/log")
    async def log_of(name: str, after: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
        """New records of a run's log."""
        found = await asyncio.to_thread(runs.log, name, after)
        folder = str(runs.folder(name)) if is_local else name
        return {**found, "folder": folder}  # which only readers at this machine need to know

    @router.post("/v1/runs/{name}/sample")
    async def sample_of(name: str, ask: SampleAsk) -> dict[str, Any]:
        """What the weights so far make of a text."""
        return await asyncio.to_thread(runs.sample, name, ask.text)


def _lab_routes(router: APIRouter, jobs: Jobs) -> None:
    @router.get("/v1/labs")
    async def list_labs(language: Language = "en") -> dict[str, Any]:
        """Labs with their claims, and which have a result here."""
        return {"data": await asyncio.to_thread(lab_list, jobs, language)}

    @router.get("/v1/labs/{name}/figure", response_class=FileResponse)
    async def figure_of(name: str, language: Language = "en") -> FileResponse:
        """The figure of a lab that was run here."""
        path = lab_figure(jobs, name, language)
        if not path.is_file():
            raise HTTPException(404, f"The lab {name!r} has no figure yet; run it.")
        return FileResponse(path, media_type="image/png", headers={"Cache-Control": "no-cache"})


def _work_routes(runs: Runs, is_local: bool) -> APIRouter:
    """Routes that start work, and are not in the description of the API: for the page alone."""

    def check_local(request: Request) -> None:
        """Only the page itself may start work, and only on a server for this machine alone."""
        if not is_local:
            raise HTTPException(
                403, "Work can be started only where the server serves this machine."
            )
        origin = request.headers.get("origin")
        if origin and urlsplit(origin).netloc != request.headers.get("host"):
            raise HTTPException(403, "Only the page of this server can start work.")

    router = APIRouter(include_in_schema=False, dependencies=[Depends(check_local)])

    @router.post("/v1/runs/demo/start")
    async def start_demo() -> dict[str, Any]:
        """Train the packaged recipe on this machine."""
        await asyncio.to_thread(runs.jobs.start_demo)
        return {"running": runs.jobs.running()}

    @router.post("/v1/runs/stop")
    async def stop() -> dict[str, Any]:
        """Stop what the page has started."""
        await asyncio.to_thread(runs.jobs.stop)
        return {"running": runs.jobs.running()}

    @router.post("/v1/labs/{name}/start")
    async def start_lab(name: str, language: Language = "en") -> dict[str, Any]:
        """Run a lab on this machine."""
        await asyncio.to_thread(runs.jobs.start_lab, name, language)
        return lab_state(runs.jobs, name)

    return router


def _folders(models: Models) -> dict[str, Path]:
    """Folders of the served models, by name."""
    offers = {name: Path(models.offer(name).path) for name in models.names()}
    return {
        name: path if path.is_dir() else shelf.find_model(str(path))
        for name, path in offers.items()
    }
