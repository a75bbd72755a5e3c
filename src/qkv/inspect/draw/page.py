"""HTML pages and notebook cells that need nothing else: no scripts, no other files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from qkv.inspect.draw.language import current_language


@cache
def _macros() -> Any:
    loader = PackageLoader("qkv.inspect.draw", "")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html").module


def piece(name: str, *values: object) -> Markup:
    """Fill a macro of the template `page.html`; every value that is not Markup is escaped."""
    return Markup(getattr(_macros(), name)(*values))


def texts(sides: Mapping[str, Sequence[str]]) -> Markup:
    """Build a line per side with the tokens that were read."""
    return piece("texts", sides, "：" if current_language() == "zh" else ": ")


def page(title: str, parts: Iterable[Markup]) -> str:
    """Build a whole page."""
    language = {"zh": "zh-CN"}.get(current_language(), current_language())
    return str(piece("page", title, list(parts), language)).lstrip()
