"""A task's record names parts that exist."""

from importlib import import_module

import pytest

import qkv
from qkv.config import TASKS
from qkv.training import objectives


@pytest.mark.parametrize("task", TASKS)
def test_items_objective_and_result_exist(task: str) -> None:
    spec = TASKS[task]
    import_module(f"qkv.data.items.{spec.items}")
    assert callable(getattr(objectives, spec.objective))
    assert isinstance(getattr(qkv, spec.result), type)
