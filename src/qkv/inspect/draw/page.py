"""HTML pages and notebook cells that need nothing else: no scripts, no other files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup


@cache
def _macros() -> Any:
    loader = PackageLoader("qkv.inspect.draw", "")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html").module


def piece(name: str, *values: object) -> Markup:
    """Fill a macro of the template `page.html`; every value that is not Markup is escaped."""
    return Markup(getattr(_macros(), name)(*values))


def page(title: str, parts: Iterable[Markup]) -> str:
    """Build a whole page."""
    return str(piece("page", title, list(parts))).lstrip()
