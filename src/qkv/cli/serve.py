"""`qkv serve`: models behind an HTTP API and a page in the browser."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from qkv.cli import options
from qkv.errors import UserError, missing_package
from qkv.serve.settings import ServeSettings

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
USUAL = ServeSettings()

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="M",
        help="Model folders, GGUF files, or packaged or pulled names; NAME=M gives another name "
        "[default: zh-en and mini-bert].",
        autocompletion=options.complete_model,
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="QKV_API_KEY", help="Key that every request must bring.")
]
NoApiKey = Annotated[bool, typer.Option("--no-api-key", help="Serve others without a key.")]
Cors = Annotated[
    list[str] | None,
    typer.Option(metavar="ORIGIN", help="Let pages of this origin ask; repeatable."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Further name in the Host header; repeatable."),
]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Most weights in memory, such as 8G.")]
MaxBody = Annotated[int, typer.Option(min=1, help="Most bytes of a request.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens of a request.")]
MaxRows = Annotated[int, typer.Option(min=1, help="Most texts of a request.")]
MaxQueue = Annotated[int, typer.Option(min=1, help="Most requests of a model at the same time.")]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, help="Answer with this many processes, on Ray; without the page."),
]
Address = Annotated[
    str | None,
    typer.Option(help="Ray cluster for the replicas, like auto [default: one of this machine]."),
]
MaxSeconds = Annotated[float, typer.Option(min=0.1, help="Most seconds until an answer.")]


def serve(
    model: Models = None,
    *,
    host: Host = USUAL.host,
    port: Port = USUAL.port,
    api_key: ApiKey = None,
    no_api_key: NoApiKey = False,
    cors: Cors = None,
    allow_host: AllowHost = None,
    memory: Memory = "0",
    max_body: MaxBody = USUAL.max_body,
    max_tokens: MaxTokens = USUAL.max_tokens,
    max_rows: MaxRows = USUAL.max_rows,
    max_queue: MaxQueue = USUAL.max_queue,
    max_seconds: MaxSeconds = USUAL.max_seconds,
    replicas: Replicas = None,
    address: Address = None,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> None:
    """Serve models over HTTP, with a page in the browser.

    The API has OpenAI's shapes, and an address for each task.

    \b
    Example: qkv serve
    Example: qkv serve runs/demo --port 9000
    Example: qkv serve zh-en runs/poetry_zh --memory 2G
    Example: qkv serve zh-en --replicas 4
    """
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
    if replicas or address:
        run(model, settings, replicas or 1, address)
    else:
        run(model, settings)


def run(
    given: list[str] | None,
    settings: ServeSettings,
    n_replicas: int = 0,
    address: str | None = None,
) -> None:
    """Serve models, by default the packaged ones, until a signal comes."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing_package("qkv serve", "FastAPI and uvicorn", "serve") from error
    from qkv.serve import server
    from qkv.serve.models import Models
    from qkv.shelf import ENCODER, TRANSLATOR

    names = given or [TRANSLATOR, ENCODER]  # each is loaded when somebody asks for it
    if n_replicas:
        from qkv.serve.replicas import serve_replicas

        serve_replicas(names, settings, n_replicas, address)
        return
    server.serve(Models(names, settings))


def parse_size(text: str) -> int:
    """A number of bytes, such as 8G or 500M."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise UserError(f"--memory is {text!r}, but must be a size such as 8G or 500M.")
    return int(float(found[1]) * UNITS[found[2].upper()])
