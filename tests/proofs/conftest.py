from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.proofs.models import KINDS, folder_of


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A model folder of a kind, made once; nobody may change it."""
    return cache(lambda kind: folder_of(KINDS[kind](), tmp_path_factory.mktemp("model")))


@pytest.fixture
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without it."""
    monkeypatch.setattr("qkv.proofs.peer.find_spec", lambda name: None)
