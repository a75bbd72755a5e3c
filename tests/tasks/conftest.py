from pathlib import Path

import pytest

from qkv.tasks import Translator, load
from tests.run.tiny import learned


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that spells digits."""
    return learned(tmp_path_factory).folder


@pytest.fixture(scope="package")
def translator(folder: Path) -> Translator:
    return load(folder, device="cpu")
