"""Render a chat template within bounds; run as a script of its own process, never imported.

A checkpoint's template is anybody's program, and jinja2's sandbox limits what it reaches, not how
long it runs or how much it writes. Reads one JSON object from standard input and writes a JSON list
of texts, null where a conversation cannot be written. Or it exits with a code of the request:
`too_large`; or `broken`, where none can be written, with the reason on standard error.
"""

import json
import sys
from typing import Any

from jinja2 import Environment, Template, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qkv.child_process import limit_memory, stop


class Generation(Extension):
    """The tags around what the assistant says, which write nothing."""

    tags = {"generation"}  # noqa: RUF012 (the base class says so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Keep what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: str) -> None:
    """`raise_exception` of the template."""
    raise ValueError(message)


def to_json(value: object, indent: int | None = None, **others: Any) -> str:
    """`tojson` as transformers has it: without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def compiled(environment: Environment, jinja: str, broken: int) -> Template:
    """The program, if its syntax is right."""
    try:
        return environment.from_string(jinja)
    except TemplateSyntaxError as error:
        stop(f"line {error.lineno}: {error.message}", broken)


def main() -> None:
    """Render all conversations of the request."""
    request = json.load(sys.stdin)
    limit_memory(request["n_bytes"])
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    # There is no `strftime_now`: a template is the same on any day, and most programs that ask for
    # the day have one to fall back on.
    environment.globals["raise_exception"] = refuse
    texts: list[str | None] = []
    failure = ""
    try:
        template = compiled(environment, request["jinja"], request["broken"])
        for messages, invite in request["conversations"]:
            try:
                text = template.render(
                    **request["tokens"],
                    messages=messages,
                    add_generation_prompt=invite,
                    tools=None,
                    documents=None,
                )
            except MemoryError:
                raise
            except Exception as error:  # the program is anybody's, and may fail in any way
                failure = failure or str(error)
                texts.append(None)
                continue
            if len(text) > request["n_characters"]:
                sys.exit(request["too_large"])
            texts.append(text)
    except MemoryError:
        sys.exit(request["too_large"])
    if not any(texts):
        stop(failure or "it writes nothing", request["broken"])
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main()
