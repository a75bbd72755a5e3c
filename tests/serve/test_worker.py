"""A worker: who is woken when, and what is run together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import qkv
from qkv.config import DecodeConfig
from qkv.decode import Request
from qkv.serve import writing
from qkv.serve.worker import WORTH_WAKING, Worker
from qkv.serve.writing import Answer, plan_n_best
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


def test_translations_that_end_together_are_read_together(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, read, sizes = qkv.load(folders["spelling"]), writing._read, []
    texts = ["a", "b", "c"]

    def counted(task: object, searches: list[tuple[object, object]]) -> list[list[str]]:
        sizes.append(len(searches))
        return read(task, searches)

    async def translate() -> list[str]:
        worker = await Worker("spelling", lambda: task).loaded()
        run_jobs = worker._run_jobs

        def run_when_all_have_come() -> None:
            if len(worker._jobs) == len(texts):
                run_jobs()

        monkeypatch.setattr(worker, "_run_jobs", run_when_all_have_come)
        answers = [Answer(worker, plan_n_best(task, [text], 1, max_length=3)) for text in texts]
        await asyncio.gather(*(answer.finish() for answer in answers))
        worker.close()
        return [answer.choices[0].text for answer in answers]

    monkeypatch.setattr(writing, "_read", counted)
    assert asyncio.run(translate()) == [task.translate(text, max_length=3) for text in texts]
    assert sizes == [len(texts)]
