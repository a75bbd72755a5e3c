"""Errors in OpenAI's shape: a status, and one sentence that says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from qkv.errors import UserError
from qkv.serve.models import BusyError, UnavailableError, UnknownModelError

TAG = re.compile(r"^(str|int|float|bool)$|[\[(-]")  # how pydantic names one kind of several
IN_PYTHON = re.compile(r", or [\w ]+ with truncate=True")  # a way out that no request has
PATHS = {  # by what Starlette says of them; our own routes say more
    "Not Found": "There is nothing at this path; /docs lists what there is.",
    "Method Not Allowed": "This path cannot be asked in this way; /docs lists how it can.",
}
RETRY_SECONDS = 1  # after which somebody who was turned away may try again
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class ApiError(Exception):
    """A request that is refused, with its status and a sentence."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def error_content(error: Exception) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    known = as_api_error(error)
    kind = TYPES.get(known.status, "invalid_request_error")
    return {"error": {"message": known.message, "type": kind, "param": None, "code": known.code}}


def error_response(error: Exception, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Build the response for an error; those who come too often are told when to try again."""
    status, headers = as_api_error(error).status, dict(headers or {})
    if status in (429, 503):
        headers.setdefault("Retry-After", str(RETRY_SECONDS))
    if status == 401:
        headers.setdefault("WWW-Authenticate", "Bearer")
    return JSONResponse(error_content(error), status, headers)


def as_api_error(error: Exception) -> ApiError:
    """The status and the sentence of an exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UnknownModelError):
        return ApiError(404, str(error), "model_not_found")
    if isinstance(error, BusyError):
        return ApiError(429, str(error), "rate_limit_exceeded")
    if isinstance(error, UnavailableError):
        return ApiError(503, str(error), "model_unavailable")
    if isinstance(error, UserError):
        return ApiError(422, IN_PYTHON.sub("", str(error)))
    if isinstance(error, TimeoutError):
        return ApiError(503, "The request took too long; ask for less at a time.", "timeout")
    if isinstance(error, RequestValidationError):
        return ApiError(422, _sentence(error))
    if isinstance(error, HTTPException):
        if error.status_code == 400:  # FastAPI's for a body that JSON's reader gives up on
            return ApiError(422, "The body cannot be read as JSON; send an object.")
        return ApiError(error.status_code, PATHS.get(error.detail, error.detail))
    return ApiError(500, "The server made a mistake; its log has the details.")


def install(app: FastAPI) -> None:
    """Answer every exception that stands for a mistake of the client in OpenAI's shape."""

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        return error_response(error, getattr(error, "headers", None))

    for kind in (ApiError, UserError, TimeoutError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, refuse)


def _nearest(errors: Sequence[Any]) -> Any:
    """Return the first error; where a value may be of several kinds, that of the nearest kind."""
    first = errors[0]
    if not first["loc"] or not TAG.search(str(first["loc"][-1])):
        return first
    same = [one for one in errors if one["loc"][: len(first["loc"]) - 1] == first["loc"][:-1]]
    return max(same, key=lambda one: len(one["loc"]))


def _path(loc: Sequence[Any]) -> list[str]:
    """Return where a value is, without the kinds that were tried for it."""
    return [str(part) for part in loc if part != "body" and not TAG.search(str(part))]


def _sentence(error: RequestValidationError) -> str:
    """Name the first value that does not fit, and the rule; the value itself is not repeated."""
    first = _nearest(error.errors())
    if first["type"] == "json_invalid":
        return f"The body is not JSON ({first['ctx']['error']}); send an object."
    where = ".".join(_path(first["loc"]))
    rule = str(first["msg"]).rstrip(".")
    if not where:
        rule = "it must be a JSON object, sent with the header Content-Type: application/json"
    return f"{where or 'The body'}: {rule}."
