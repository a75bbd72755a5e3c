"""`qkv serve`: models behind an HTTP API and a page in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from qkv.cli import options
from qkv.errors import missing_package


def serve(
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[M]...",
            help="Model folders, GGUF files, or packaged or pulled names [default: zh-en].",
            autocompletion=options.complete_model,
        ),
    ] = None,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.")] = 8000,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
) -> None:
    """Serve models over HTTP: an API shaped like OpenAI's, tasks, and a page in the browser.

    \b
    Example: qkv serve
    Example: qkv serve runs/demo --port 9000
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise missing_package(
            "qkv serve", "FastAPI, uvicorn and prometheus-client", "serve"
        ) from error
    from qkv.serve.app import create_app
    from qkv.serve.models import Models
    from qkv.serve.settings import ServeSettings
    from qkv.shelf import TRANSLATOR

    settings = ServeSettings(host=host, port=port, device=device, dtype=dtype)
    app = create_app(Models(model or [TRANSLATOR], settings), settings)
    uvicorn.run(app, host=host, port=port)
