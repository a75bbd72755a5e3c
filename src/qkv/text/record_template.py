"""Templates for records: text with '{name}' placeholders that a record's fields fill."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from qkv.errors import UserError, shown

BRACES = re.compile(r"\{\{|\}\}|\{([\w.-]+)\}|[{}]")
HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def check_characters(text: str, what: str) -> None:
    """Refuse half of a surrogate pair, which JSON can spell: no character, and without UTF-8 form.

    `what` the text is begins the sentence.
    """
    if HALF_CHARACTER.search(text):
        raise UserError(
            f"{what} holds half a surrogate pair (\\ud800 to \\udfff), which is no text; correct "
            f"it, or delete the record."
        )


def fill(template: str, record: Mapping[str, object], where: str) -> str:
    """Put the record's fields into the template's placeholders; braces in a field are just text."""
    return "".join(
        _value(record, part, where) if is_name else part for part, is_name in parts(template)
    )


def names(template: str) -> list[str]:
    """List the fields that a template needs, each once, in order."""
    return list(dict.fromkeys(part for part, is_name in parts(template) if is_name))


# Not `str.format`, which would let a template reach into attributes ('{text.__class__}').
@lru_cache(maxsize=64)
def parts(template: str) -> tuple[tuple[str, bool], ...]:
    """Cut a template into text and names; the flag is true for a name."""
    cut: list[tuple[str, bool]] = []
    end = 0
    for match in BRACES.finditer(template):
        cut.append((template[end : match.start()], False))
        end = match.end()
        if not match[1] and len(match[0]) == 1:
            raise UserError(
                f"The template {template!r} has a {match[0]!r} at character {match.start() + 1} "
                f"that belongs to no '{{name}}' of letters, digits, '_', '-' and '.'; write "
                f"'{match[0] * 2}' where a brace is meant."
            )
        cut.append((match[1], True) if match[1] else (match[0][0], False))
    cut.append((template[end:], False))
    return tuple((part, is_name) for part, is_name in cut if part)


def _value(record: Mapping[str, object], name: str, where: str) -> str:
    if name not in record:
        raise UserError(
            f"{where}: the template needs a field {name!r}, but the record has "
            f"{', '.join(map(repr, record)) or 'none'}; correct the template or the record."
        )
    value = record[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise UserError(
            f"{where}: field {name!r} holds {shown(value)}, but a template takes strings, "
            f"numbers and lists of strings; correct the template or the record."
        )
    text = "\n".join(lines)
    check_characters(text, f"{where}: field {name!r}")
    return text
