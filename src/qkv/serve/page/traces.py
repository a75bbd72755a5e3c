"""Recent passes of one model, kept so that the next quantity of the same text needs no new pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from qkv.inspect.trace.trace import Trace
from qkv.serve.page.actions import Done, act
from qkv.serve.page.changes import apply_changes

N_KEPT = 12  # passes per model
Kept = TypeVar("Kept")


class Passes:
    """The most recent passes of a model, with and without changes."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def done(self, action: str, text: str, second: str = "") -> Done:
        """Do what is asked with a text, or take it from the recent ones."""
        return self._recent((action, text, second), lambda: act(self._task, action, text, second))

    def trace(self, action: str, text: str, second: str, changes: list[str]) -> Trace:
        """Trace the pass of an action with changes."""
        plain = self.done(action, text, second).trace
        if not changes:
            return plain
        asked = (action, text, second, *changes)
        return self._recent(asked, lambda: self._changed(plain, action, second, changes))

    def _changed(self, plain: Trace, action: str, second: str, changes: list[str]) -> Trace:
        return apply_changes(plain, changes, lambda text: self.done(action, text, second).trace)

    def _recent(self, asked: Hashable, make: Callable[[], Kept]) -> Kept:
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
        _PASSES[task] = Passes(task)
    return _PASSES[task]
