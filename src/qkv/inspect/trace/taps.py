"""What is wanted of a pass: quantities to hand out, to change, or to differentiate by."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from qkv.inspect.trace.edit import Edit


@dataclass(frozen=True)
class Ask:
    """A wanted quantity: all of it, or one head."""

    key: str
    head: int | None = None


class AllSeen(Exception):  # noqa: N818 - nothing went wrong
    """Stops a pass when every wanted quantity has been seen."""


@dataclass
class Probe:
    """Quantities wanted of a pass and changes to it; `values` holds what was seen.

    Quantities in `by` are to be differentiated by: the pass goes on with the tensors in `nodes`.
    """

    asks: Sequence[Ask]
    edits: Sequence[Edit] = ()
    by: Collection[str] = ()
    values: dict[Ask, Tensor] = field(default_factory=dict)
    nodes: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paused = False
        self._heads: dict[str, set[int | None]] = {}
        for ask in self.asks:
            self._heads.setdefault(ask.key, set()).add(ask.head)
        self._edits: dict[str, list[Edit]] = {}
        for edit in self.edits:
            self._edits.setdefault(edit.key, []).append(edit)

    def tap(self, key: str, value: Tensor) -> Tensor:
        """Change a quantity where an edit says so, keep it where it is asked for, return it."""
        if self.paused:
            return value
        for edit in self._edits.get(key, ()):
            self.paused = True  # the edit may itself run the model
            try:
                value = edit.change(value)
            finally:
                self.paused = False
        if key in self.by:
            value = value if value.requires_grad else value.detach().requires_grad_()
            # A node of its own, since others may read the tensor by another name.
            value = self.nodes[key] = value.view_as(value)
        for head in self._heads.get(key, ()):
            self.keep(Ask(key, head), value if head is None else value[:, head : head + 1])
        return value

    def keep(self, ask: Ask, value: Tensor) -> None:
        """Store a value, and stop the pass if it was the last one wanted."""
        is_view = value.untyped_storage().nbytes() > value.nbytes
        self.values[ask] = value.clone() if is_view else value
        if len(self.values) == len(set(self.asks)):
            raise AllSeen

    def heads(self, key: str) -> set[int | None]:
        """Heads that are asked for of a quantity; None stands for all together."""
        return self._heads.get(key, set())

    def changes(self, *keys: str) -> bool:
        """Whether the pass must go on with what a tap returns for one of these quantities."""
        return any(key in self._edits or key in self.by for key in keys)

    def concerns(self, *keys: str) -> bool:
        """Whether one of these quantities is asked for or changed."""
        return not self.paused and (self.changes(*keys) or any(key in self._heads for key in keys))
