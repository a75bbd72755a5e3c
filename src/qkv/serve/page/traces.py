"""Recent passes of one model, kept so that the next quantity of the same text needs no new pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field, field_validator

from qkv.data.formats.images import DATA_URL
from qkv.decode import Hypothesis, Request
from qkv.inspect.trace.trace import Trace
from qkv.serve.page.actions import Done, act, search
from qkv.serve.page.changes import apply_changes

LONGEST_TEXT, LONGEST_IMAGE = 4000, 500_000  # characters
N_KEPT = 12  # passes per model
Kept = TypeVar("Kept")


class Ask(BaseModel):
    """A text, what to do with it, and how the pass is changed."""

    action: str
    text: str = Field(max_length=LONGEST_IMAGE)
    second: str = Field("", max_length=20_000)
    changes: list[str] = Field(default_factory=list, max_length=64)

    @field_validator("text")
    @classmethod
    def _limit(cls, text: str) -> str:
        """Let an image, as a data URL, be longer than a text."""
        if len(text) > LONGEST_TEXT and not text.startswith(DATA_URL):
            raise ValueError(f"String should have at most {LONGEST_TEXT} characters")
        return text


class Passes:
    """The most recent passes of a model, with and without changes.

    They hold no task, so that a model which is unloaded takes its passes with it.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def done(
        self, task: Any, action: str, text: str, second: str = "", best: Hypothesis | None = None
    ) -> Done:
        """Do what is asked with a text, or take it from the recent ones."""
        return self.recent((action, text, second), lambda: act(task, action, text, second, best))

    def knows(self, ask: Ask) -> bool:
        """Whether the pass of a question is one of the recent ones."""
        return (ask.action, ask.text, ask.second) in self._kept

    def trace(self, task: Any, ask: Ask, changes: Sequence[str]) -> Trace:
        """Trace the pass of an action with changes."""
        action, text, second = ask.action, ask.text, ask.second
        plain = self.done(task, action, text, second).trace
        if not changes:
            return plain

        def other(text: str) -> Trace:
            return self.done(task, action, text, second).trace

        return self.recent(
            (action, text, second, *changes), lambda: apply_changes(plain, changes, other)
        )

    def recent(self, asked: Hashable, make: Callable[[], Kept]) -> Kept:
        """Return the answer to a question, computed anew if it is none of the recent ones."""
        if asked not in self._kept:
            self._kept[asked] = make()
            while len(self._kept) > N_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(asked)
        kept: Kept = self._kept[asked]
        return kept


_PASSES: WeakKeyDictionary[Any, Passes] = WeakKeyDictionary()


def passes(task: Any) -> Passes:
    """The recent passes of a loaded model."""
    if task not in _PASSES:
        _PASSES[task] = Passes()
    return _PASSES[task]


def traced(task: Any, ask: Ask) -> Trace:
    """Trace the pass that a question is about, with its changes."""
    return passes(task).trace(task, ask, ask.changes)


def untouched(task: Any, ask: Ask, best: Hypothesis | None = None) -> Done:
    """Do what a question is about without changes; `best` is what its search has found."""
    return passes(task).done(task, ask.action, ask.text, ask.second, best)


def missing_search(task: Any, ask: Ask) -> Request | None:
    """The engine's request that a question needs first; None if its pass is known or has none."""
    return None if passes(task).knows(ask) else search(task, ask.action, ask.text)


def remembered(task: Any, ask: Ask, what: str, make: Callable[[], Kept]) -> Kept:
    """An answer about a pass, computed once while the pass is recent."""
    asked = (what, ask.action, ask.text, ask.second, *ask.changes)
    return passes(task).recent(asked, make)
