"""All tests of this folder need a GPU."""

from pathlib import Path

import pytest
import torch

ABSENT = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(ABSENT)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda", 0)
