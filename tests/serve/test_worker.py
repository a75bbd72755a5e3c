"""A worker: who is woken when, and what is run together."""

from __future__ import annotations

import asyncio
import threading

import pytest

from qkv.config import DecodeConfig
from qkv.decode import Request
from qkv.serve.worker import WORTH_WAKING, Worker
from tests.serve.conftest import SPEAKER, speaker, vocabulary


@pytest.mark.parametrize("limit", [5, 2 * WORTH_WAKING + 5])
def test_a_client_of_whole_texts_is_seldom_woken_and_gets_all_tokens(limit: int) -> None:
    task = speaker(vocabulary("bpe"), **{**SPEAKER, "eos": -100.0})
    request = Request((5, 6), limit, (99,), DecodeConfig(beams=1))

    async def lists(whole: bool) -> list[list[int]]:
        worker = await Worker("speaker", lambda: task).loaded()
        generation = worker.generate([request], whole)
        found = [[event.token for event in events] async for events in generation]
        worker.close()
        return found

    (expected,) = task.engine.run([request])
    streamed, whole = asyncio.run(lists(False)), asyncio.run(lists(True))
    for found in (streamed, whole):
        assert [token for tokens in found for token in tokens] == expected.tokens
    assert [len(tokens) for tokens in streamed] == [1] * limit
    assert len(whole) == 1 + limit // WORTH_WAKING


def test_jobs_that_wait_for_the_same_are_run_together() -> None:
    sizes, gate = [], threading.Event()

    def double(task: object, texts: list[str]) -> list[str]:
        sizes.append(len(texts))
        return [2 * text for text in texts]

    async def ask() -> list[list[str]]:
        worker = await Worker("speaker", object).loaded()
        busy = asyncio.ensure_future(worker.run(lambda task: gate.wait()))
        asked = [asyncio.ensure_future(worker.gather(double, [text])) for text in "abc"]
        await asyncio.sleep(0)  # all have asked
        gate.set()
        found = await asyncio.gather(*asked)
        await busy
        worker.close()
        return found

    assert asyncio.run(ask()) == [["aa"], ["bb"], ["cc"]]
    assert sizes == [3]
