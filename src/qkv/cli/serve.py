"""`qkv serve`: models behind an HTTP API and a page in the browser."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from qkv.cli import options
from qkv.errors import UserError, missing_package

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def serve(
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[M]...",
            help="Model folders, GGUF files, or packaged or pulled names; NAME=M gives another "
            "name [default: zh-en].",
            autocompletion=options.complete_model,
        ),
    ] = None,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="QKV_API_KEY", help="Key that every request must bring."),
    ] = None,
    no_api_key: Annotated[
        bool, typer.Option("--no-api-key", help="Serve others without a key.")
    ] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Let pages of this origin ask; repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Further name in the Host header; repeatable."),
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Weights in memory at most, such as 8G.")
    ] = "0",
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 2**20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a request.")] = 16_384,
    max_rows: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 64,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Requests that a model has at the same time.")
    ] = 256,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a request must be answered.")
    ] = 300.0,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> None:
    """Serve models over HTTP: an API shaped like OpenAI's, tasks, and a page in the browser.

    \b
    Example: qkv serve
    Example: qkv serve runs/demo --port 9000
    Example: qkv serve zh-en runs/poetry_zh --memory 2G
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing_package("qkv serve", "FastAPI and uvicorn", "serve") from error
    from qkv.serve.models import Models
    from qkv.serve.server import serve as run
    from qkv.serve.settings import ServeSettings
    from qkv.shelf import TRANSLATOR

    settings = ServeSettings(
        host=host,
        port=port,
        api_key=api_key or None,
        cors=tuple(cors or ()),
        allowed_hosts=tuple(name.lower() for name in allow_host or ()),
        device=device,
        dtype=dtype,
        memory=parse_size(memory),
        max_body=max_body,
        max_tokens=max_tokens,
        max_rows=max_rows,
        max_queue=max_queue,
        max_seconds=max_seconds,
    )
    if not (settings.is_local or settings.api_key or no_api_key):
        raise UserError(
            f"--host {host} can be reached from other machines, so that a key is needed; give one "
            f"with --api-key or QKV_API_KEY, or say --no-api-key."
        )
    run(Models(model or [TRANSLATOR], settings), settings)


def parse_size(text: str) -> int:
    """A number of bytes, such as 8G or 500M."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise UserError(f"--memory is {text!r}, but must be a size such as 8G or 500M.")
    return int(float(found[1]) * UNITS[found[2].upper()])
