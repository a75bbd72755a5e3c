from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shelf of the test's own, and no proxy between it and this machine."""
    monkeypatch.setenv("QKV_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "home"
