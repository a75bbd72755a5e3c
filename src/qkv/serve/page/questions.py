"""Questions about a model: one route for each function that answers one in the model's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from qkv.decode.closed_batch import join
from qkv.serve.hang_up import answer
from qkv.serve.models import Models
from qkv.serve.page import comparing, next_token
from qkv.serve.page.heads import heads, roles
from qkv.serve.page.looks import answer as outputs
from qkv.serve.page.looks import quantities
from qkv.serve.page.traces import Ask, missing_search, untouched
from qkv.serve.page.worked import worked
from qkv.serve.worker import Worker

QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "answer": outputs,
    "trace": quantities,
    "cell": worked,
    "heads": heads,
    "roles": roles,
    "next": next_token.next_token,
    "beam": next_token.beam,
    "forced": next_token.forced,
    "predictions": comparing.predictions,
    "word": comparing.word_in_sentences,
    "neighbours": comparing.neighbours,
}
"""By the last part of the path; the annotation of `ask` is the body."""


def add_questions(router: APIRouter, models: Models) -> None:
    """Add `POST /v1/models/MODEL/QUESTION` for each question."""
    for what, function in QUESTIONS.items():
        router.add_api_route(
            f"/v1/models/{{model:path}}/{what}",
            _endpoint(function, models),
            methods=["POST"],
            name=what,
            description=(function.__doc__ or "").partition("\n")[0],
            response_model=None,
            response_class=Response if what == "trace" else JSONResponse,
        )


def _endpoint(function: Callable[[Any, Any], Any], models: Models) -> Callable[..., Any]:
    async def work(model: str, ask: Any) -> Any:
        async with models.use(model) as worker:
            if isinstance(ask, Ask):
                await _search(worker, ask)
            return await worker.run(function, ask)

    async def endpoint(model: str, ask: Any, request: Request) -> Any:
        found = await answer(request, work(model, ask))
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return found

    endpoint.__annotations__["ask"] = get_type_hints(function)["ask"]
    return endpoint


async def _search(worker: Worker, ask: Ask) -> None:
    """Write what a question is about in the running batch; its rows are freed if it is dropped."""
    request = await worker.run(missing_search, ask)
    if request is None:
        return
    handles = await worker.generate([request], whole=True).finish()
    await worker.run(untouched, ask, join(handles)[0])
