"""Settings as typed, documented dataclass fields, read from plain mappings with clear errors."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from qkv.errors import UserError

T = TypeVar("T")
WHOLE = 1 << 63
_type_hints = cache(get_type_hints)  # evaluating them takes longer than all checks


def setting(
    default: Any, help: str, *, least: float | None = None, most: float | None = None
) -> Any:
    """Declare one setting: its default, one line of help, and the range it must lie in."""
    return dataclasses.field(default=default, metadata={"help": help, "least": least, "most": most})


def from_mapping(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build the dataclass `cls` from a mapping; `where` says in errors what the mapping is."""
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _type_hints(cls)  # type: ignore[arg-type]
    arguments = {}
    for name, value in values.items():
        if name not in known:
            raise UserError(f"{where}: unknown key {name!r}{suggestion(name, known)}")
        arguments[name] = _checked(value, hints[name], f"{where}: {name}")
    return cls(**arguments)


def suggestion(name: str, known: Any) -> str:
    """Suggest the known name nearest to a misspelt one, or list all known names."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it may be one of {', '.join(sorted(known))}."


def check_ranges(config: Any, where: str) -> None:
    """Check every field against the range that its `setting` declares."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        least, most = field.metadata.get("least"), field.metadata.get("most")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        # Written as `not >=` so that NaN fails.
        if least is not None and not value >= least:
            raise UserError(f"{where}: {field.name} is {value}, but must be at least {least}.")
        if most is not None and not value <= most:
            raise UserError(f"{where}: {field.name} is {value}, but must be at most {most}.")
        if isinstance(value, int) and not -WHOLE <= value < WHOLE:
            raise UserError(f"{where}: {field.name} is too large for a whole number of 64 bits.")


class Section:
    """Settings that belong together, checked one by one and against each other."""

    def __post_init__(self) -> None:
        name = type(self).__name__.removesuffix("Config").lower()
        check_ranges(self, name)
        for problem in self._problems():
            raise UserError(f"{name}: {problem}")

    def _problems(self) -> Iterable[str]:
        """Say what is wrong with the values taken together; the first problem is reported."""
        return ()


def _checked(value: Any, hint: Any, where: str) -> Any:
    """Return `value` as the hinted type, or say what was expected."""
    if getattr(value, "ndim", None) == 0:  # a number of NumPy or torch
        value = value.item()
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _first_that_fits(value, options, hint, where)
    if origin is Literal:
        if value in options and type(value) in {type(option) for option in options}:
            return value
        choices = ", ".join(map(repr, options))
        raise UserError(f"{where} is {value!r}, but must be one of: {choices}.")
    if origin is tuple:
        single = isinstance(value, str) or (isinstance(value, int) and int in get_args(options[0]))
        # An empty text is what `--set data.pairs=` leaves: nothing, and not the folder ".".
        items = ([] if value == "" else [value]) if single else value
        if not isinstance(items, list | tuple):
            raise UserError(f"{where} is {value!r}, but must be a list.")
        return tuple(_checked(item, options[0], where) for item in items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise UserError(f"{where} is too large for a number of 64 bits.") from error
    if hint is type(None) and value is None:
        return None
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise UserError(f"{where} is {value!r}, but must be {_described(hint)}.")


def _described(hint: Any) -> str:
    described = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return described.get(hint) or type_name(hint)


def _first_that_fits(value: Any, options: tuple[Any, ...], hint: Any, where: str) -> Any:
    for option in options:
        try:
            return _checked(value, option, where)
        except UserError:
            continue
    raise UserError(f"{where} is {value!r}, but must be {type_name(hint)}.")


def type_name(hint: Any) -> str:
    """Name a type for people: "list of str", "'on' | 'off'"."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(option) for option in options)
    if origin is Literal:
        return " | ".join(map(repr, options))
    if origin is tuple:
        return f"list of {type_name(options[0])}"
    return "none" if hint is type(None) else str(hint.__name__)
