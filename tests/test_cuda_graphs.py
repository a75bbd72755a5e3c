"""CUDA graphs, as far as they can be tested without a GPU."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from qkv.cuda_graphs import record


@pytest.fixture
def recordings(monkeypatch):
    """Let torch note, instead of recording, how many recordings are under way at each begin."""
    under_way, noted = [], []

    @contextmanager
    def graph(*arguments, **settings):
        noted.append(len(under_way))
        under_way.append(None)
        yield
        under_way.pop()

    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return noted


def test_threads_record_one_after_the_other(recordings):
    together = threading.Barrier(3)

    def work():
        together.wait()
        record(lambda: time.sleep(0.02), torch.device("cuda"))

    with ThreadPoolExecutor(3) as threads:
        for future in [threads.submit(work) for _ in range(3)]:
            future.result()
    assert recordings == [0, 0, 0]
