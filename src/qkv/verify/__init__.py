"""Proofs, on the user's machine, that a model's numbers are right."""

import sys
from types import ModuleType
from typing import Any

from qkv.verify.proof import Proof
from qkv.verify.table import ROWS, verify

__all__ = ["ROWS", "Proof", "verify"]


class _Room(ModuleType):
    """`qkv.verify(model)` verifies, and once this room is imported `qkv.verify` is the room."""

    def __call__(self, *arguments: Any, **settings: Any) -> list[Proof]:
        return verify(*arguments, **settings)


sys.modules[__name__].__class__ = _Room
