"""Recent passes of one model, kept so that the next quantity of the same text needs no new pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field

from qkv.decode import Hypothesis, Request
from qkv.inspect.trace.trace import Trace
from qkv.serve.given import GivenText
from qkv.serve.page.actions import Done, act, search
from qkv.serve.page.changes import apply_changes

N_KEPT = 12  # answers per model
Kept = TypeVar("Kept")
_RECENT: WeakKeyDictionary[Any, OrderedDict[Hashable, Any]] = WeakKeyDictionary()
"""By task, so that a model which is unloaded takes its passes with it: they hold no task."""


class Ask(BaseModel):
    """A text, what to do with it, and how the pass is changed."""

    action: str
    text: GivenText
    second: str = Field("", max_length=20_000)
    changes: list[str] = Field(default_factory=list, max_length=64)

    @property
    def plain(self) -> tuple[str, str, str]:
        """Action, text and second text: the question without its changes."""
        return self.action, self.text, self.second


def recent(task: Any, asked: Hashable, make: Callable[[], Kept]) -> Kept:
    """Return the answer to a question, computed anew if it is none of the recent ones."""
    kept = _RECENT.setdefault(task, OrderedDict())
    if asked not in kept:
        kept[asked] = make()
        while len(kept) > N_KEPT:
            kept.popitem(last=False)
    kept.move_to_end(asked)
    found: Kept = kept[asked]
    return found


def untouched(task: Any, ask: Ask, best: Hypothesis | None = None) -> Done:
    """Do what a question is about without changes; `best` is what its search has found."""
    return recent(task, ask.plain, lambda: act(task, *ask.plain, best))


def another(task: Any, ask: Ask) -> Callable[[str], Trace]:
    """Return a function that traces another text for the same action."""
    return lambda text: untouched(task, ask.model_copy(update={"text": text})).trace


def traced(task: Any, ask: Ask) -> Trace:
    """Trace the pass that a question is about, with its changes."""
    plain = untouched(task, ask).trace
    if not ask.changes:
        return plain
    changed = (*ask.plain, *ask.changes)
    return recent(task, changed, lambda: apply_changes(plain, ask.changes, another(task, ask)))


def missing_search(task: Any, ask: Ask) -> Request | None:
    """The engine's request that a question needs first; None if its pass is known or has none."""
    is_known = ask.plain in _RECENT.get(task, ())
    return None if is_known else search(task, ask.action, ask.text)
