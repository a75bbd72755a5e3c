"""/docs: the API on one page, with a command for each path; nothing is fetched from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from html import escape
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }
pre { background: #f4f4f4; padding: 0.75rem; overflow-x: auto }
h2 code { font-size: 1.1rem }
@media (prefers-color-scheme: dark) {
  body { background: #111; color: #ddd } pre { background: #222 } a { color: #8bf }
}
"""
DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{DIGEST}'; frame-ancestors 'none'"


def install(app: FastAPI, model: str) -> None:
    """Add the page to an application that has all its other routes; `model` is one to ask for."""

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        page = _page(app.openapi(), str(request.base_url).rstrip("/"))
        page = page.replace("{model}&#x27;", f"{escape(model)}&#x27;")
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})


def example_of(description: dict[str, Any], operation: dict[str, Any]) -> Any:
    """The example of a request's body in an OpenAPI description; None where it has none."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = description["components"]["schemas"][name]
    examples = schema.get("examples", [])
    return examples[0] if examples else None


def _page(description: dict[str, Any], address: str) -> str:
    sections = [
        _section(path, method, operation, example_of(description, operation), address)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>qkv: API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>qkv: API</h1><p>The same as data: "
        f'<a href="/openapi.json">openapi.json</a>.</p>{"".join(sections)}</html>'
    )


def _section(path: str, method: str, operation: dict[str, Any], example: Any, address: str) -> str:
    command = f"curl {shlex.quote(address + path)}"
    if example is not None:
        body = json.dumps(example, ensure_ascii=False)
        command += f" \\\n  -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    about = operation.get("description", operation.get("summary", ""))
    return (
        f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(about)}</p>"
        f"<pre>{escape(command)}</pre>"
    )
