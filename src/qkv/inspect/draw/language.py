"""The language of titles, sentences and labels: English, or Chinese from one table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from qkv.errors import UserError

Language = Literal["en", "zh"]
LANGUAGES: tuple[str, ...] = get_args(Language)

_current: ContextVar[str] = ContextVar("language", default="en")


@contextmanager
def language(name: str) -> Iterator[None]:
    """Show views in a language inside this block: en or zh."""
    if name not in LANGUAGES:
        raise UserError(f"There is no language {name!r}; there are {' and '.join(LANGUAGES)}.")
    token = _current.set(name)
    try:
        yield
    finally:
        _current.reset(token)


def current_language() -> str:
    """The language of this block: en unless `language` says otherwise."""
    return _current.get()


def localized(text: str, **values: object) -> str:
    """Return an English text in the current language, its {fields} filled in."""
    if _current.get() == "zh":
        from qkv.inspect.draw.chinese import CHINESE

        text = CHINESE.get(text, text)
    return text.format(**values) if values else text


def localized_each(*texts: str) -> list[str]:
    """Return several texts, as of a table's head, in the current language."""
    return [localized(text) for text in texts]


def localized_name(name: str) -> str:
    """Return the name of a quantity, "self-attention: keys", in the current language."""
    if _current.get() != "zh":
        return name
    from qkv.inspect.draw.chinese import QUANTITIES

    return "：".join(QUANTITIES.get(part, part) for part in name.split(": "))


def localized_formula(formula: str) -> str:
    """Return a formula with the words in it in the current language."""
    if _current.get() != "zh":
        return formula
    from qkv.inspect.draw.chinese import IN_FORMULAS

    for words, chinese in IN_FORMULAS.items():
        formula = re.sub(words, chinese, formula)
    return formula
