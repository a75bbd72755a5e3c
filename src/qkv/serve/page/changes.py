"""Changes of a pass, as the page's address writes them.

A change is a verb, a key and options, separated by colons; `text=` comes last and may hold colons.

off:KEY[:head=H]             switch off a head, sublayer, layer or quantity; a scale becomes 1
hide:SIDE:position=I         hide a token: no token looks at it in any layer
set:KEY:head=H:row=I:column=J:to=X   set one attention weight; the others of its row share the rest
from:KEY[:head=H][:position=I]:text=TEXT   take a quantity from the pass of another text
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qkv.errors import UserError
from qkv.inspect.trace.trace import Trace

Other = Callable[[str], Trace]
"""Trace another text, for values to patch from."""


@dataclass(frozen=True)
class Change:
    """One change: what is done to which quantity."""

    written: str
    verb: str
    key: str
    options: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int | None:
        """An option that counts heads or tokens from 0."""
        if name not in self.options:
            return None
        try:
            return int(self.options[name])
        except ValueError:
            raise UserError(f"{self.written}: {name} must be a whole number.") from None

    def needed(self, name: str) -> int:
        """An option that must be there."""
        number = self.number(name)
        if number is None:
            raise UserError(f"{self.written}: {name}= is missing.")
        return number


def parse_change(written: str) -> Change:
    """Read a change from its written form."""
    head, mark, text = written.partition(":text=")
    verb, _, rest = head.partition(":")
    key, *options = rest.split(":")
    if verb not in VERBS or not key:
        raise UserError(f"{written!r} is no change; it begins with {', '.join(VERBS)} and a key.")
    pairs = [option.partition("=") for option in options]
    found = {name: value for name, _, value in pairs}
    return Change(written, verb, key, found | ({"text": text} if mark else {}))


def apply_changes(trace: Trace, written: Sequence[str], other: Other) -> Trace:
    """Trace the pass with all changes, in their order."""
    for change in map(parse_change, written):
        trace = VERBS[change.verb](trace, change, other)
    return trace


def _off(trace: Trace, change: Change, other: Other) -> Trace:
    if change.key.endswith(".scale"):
        return trace.change(change.key, 1.0)
    return trace.silence(change.key, head=change.number("head"))


def _hide(trace: Trace, change: Change, other: Other) -> Trace:
    if change.key not in trace.inputs.sides:
        sides = " and ".join(trace.inputs.sides)
        raise UserError(f"{change.written}: this pass has no {change.key}; it has {sides}.")
    return trace.hide(change.needed("position"), change.key)


def _set_weight(trace: Trace, change: Change, other: Other) -> Trace:
    row, column = change.needed("row"), change.needed("column")
    try:
        share = float(change.options.get("to", ""))
    except ValueError:
        raise UserError(f"{change.written}: to= must be a number from 0 to 1.") from None
    if not 0 <= share <= 1:
        raise UserError(f"{change.written}: an attention weight is from 0 to 1, not {share:g}.")
    if not change.key.endswith(".weights"):
        raise UserError(f"{change.written}: only attention weights can be set to a number.")
    return trace.change(
        change.key,
        share,
        head=change.needed("head"),
        positions=[row],
        keys=[column],
        renormalise=True,
    )


def _patch(trace: Trace, change: Change, other: Other) -> Trace:
    text, position = change.options.get("text", ""), change.number("position")
    if not text.strip():
        raise UserError(f"{change.written}: the text to take it from is missing.")
    positions = None if position is None else [position]
    return trace.patch(other(text), change.key, head=change.number("head"), positions=positions)


VERBS: dict[str, Callable[[Trace, Change, Other], Trace]] = {
    "off": _off,
    "hide": _hide,
    "set": _set_weight,
    "from": _patch,
}
