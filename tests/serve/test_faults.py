"""Clients that hang up, read slowly or send nonsense, and a server that is told to end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from qkv.serve.models import Models
from qkv.serve.server import listen
from qkv.serve.settings import ServeSettings
from tests.forking import Python
from tests.serve.conftest import SPEAKER, Running, folder_of, running, speaker, vocabulary

HALF_CHARACTERS = {
    "/score": '{"texts": "\\ud800"}',
    "/v1/completions": '{"prompt": "\\udc00"}',
    "/v1/chat/completions": '{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "/translate": '{"q": "\\ud800", "source": "\\ud800"}',
    "/v1/embeddings": '{"input": "a", "model": "\\ud800"}',
}
BODY = {"prompt": "the cat", "stop": "zzz", "max_tokens": 4000}


@pytest.fixture(scope="module")
def long_winded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model that goes on for thousands of tokens."""
    settings = {**SPEAKER, "max_length": 5000, "eos": -100.0}
    folder = folder_of(
        speaker(vocabulary("bpe"), **settings), tmp_path_factory.mktemp("models") / "speaker"
    )
    with running([str(folder)]) as found, found.client() as client:
        client.post("/v1/completions", json={"prompt": "a"})  # it is loaded
        yield found


def test_hanging_up_a_stream_frees_its_rows(long_winded: Running) -> None:
    with (
        long_winded.client() as client,
        client.stream("POST", "/v1/completions", json={**BODY, "stream": True, "n": 3}) as answer,
    ):
        lines = answer.iter_lines()  # to drop them would be to hang up
        assert next(lines).startswith("data: ")
        long_winded.until("qkv_rows_running", 3, model="speaker")
    long_winded.until("qkv_rows_running", 0, model="speaker")
    long_winded.until("qkv_requests_open", 0, model="speaker")


def test_hanging_up_before_the_answer_frees_its_rows(long_winded: Running) -> None:
    before = long_winded.metric("qkv_requests_total", path="/v1/completions", status="499")
    with long_winded.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=BODY, timeout=httpx.Timeout(5, read=0.3))
    long_winded.until("qkv_rows_running", 0, model="speaker")
    long_winded.until("qkv_requests_total", before + 1, path="/v1/completions", status="499")


def test_a_question_of_the_page_is_given_up_with_its_client(long_winded: Running) -> None:
    released = threading.Event()
    worker = long_winded.models.workers()["speaker"]
    busy = threading.Thread(target=lambda: asyncio.run(worker.run(lambda _: released.wait(60))))
    busy.start()
    path = "/v1/models/{model:path}/answer"
    before = long_winded.metric("qkv_requests_total", path=path, status="499")
    asked = {"action": "continue", "text": "the cat"}
    try:
        with long_winded.client() as client, pytest.raises(httpx.ReadTimeout):
            url = "/v1/models/speaker/answer"
            client.post(url, json=asked, timeout=httpx.Timeout(5, read=0.3))
        long_winded.until("qkv_requests_total", before + 1, path=path, status="499")
    finally:
        released.set()
        busy.join()
    long_winded.until("qkv_queue", 0, model="speaker")


def test_a_slow_reader_gets_all_and_keeps_nobody_waiting(long_winded: Running) -> None:
    body = json.dumps({**BODY, "max_tokens": 300, "stream": True}).encode()
    host, port = long_winded.url.removeprefix("http://").split(":")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with slow:
        slow.connect((host, int(port)))
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        slow.sendall(head.encode() + body)
        long_winded.until("qkv_requests_open", 1, model="speaker")
        with long_winded.client() as client:  # while the other reads nothing
            quick = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
            assert quick.status_code == 200
        long_winded.until("qkv_rows_running", 0, model="speaker")  # it runs to its end
        received = b""
        while chunk := slow.recv(65536):
            received += chunk
    assert received.count(b'"text_completion"') > 30
    assert b"data: [DONE]" in received
    long_winded.until("qkv_requests_open", 0, model="speaker")


def test_what_is_not_http_or_not_json_does_no_harm(long_winded: Running) -> None:
    for nonsense in (b"\x16\x03\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 100, b""):
        with long_winded.connect() as raw:
            raw.sendall(nonsense)
    with long_winded.client() as client:
        for content in (b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'"\\ud800"'):
            for path in ("/v1/completions", "/translate", "/score"):
                headers = {"Content-Type": "application/json"}
                answer = client.post(path, content=content, headers=headers)
                assert answer.status_code == 422, (path, content[:10], answer.text)
                assert answer.json()["error"]["message"]
        for path, content in HALF_CHARACTERS.items():
            answer = client.post(path, content=content.encode(), headers=headers)
            assert answer.status_code in (404, 422), (path, answer.text)
        assert client.get("/health").status_code == 200


def test_a_step_that_fails_is_told_of_and_the_next_request_is_answered(
    long_winded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = long_winded.models.workers()["speaker"].engine
    with long_winded.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_admit", lambda: 1 / 0)
            failed = client.post("/v1/completions", json={"prompt": "a"})
            assert failed.status_code == 500
            assert "ZeroDivision" not in failed.text
            body = {"prompt": "a", "stream": True}
            streamed = client.post("/v1/completions", json=body).text
            assert '"server_error"' in streamed
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@contextmanager
def process(folder: Path) -> Iterator[tuple[Python, str]]:
    """`qkv serve` in a process of its own."""
    started = Python(["-m", "qkv", "serve", folder, "--port", "0", "--device", "cpu"])
    try:
        line = started.stdout.readline()
        assert line.startswith("Serving speaker at http://127.0.0.1:"), line
        yield started, line.split()[-1]
    finally:
        started.send_signal(signal.SIGKILL)
        started.communicate()


def test_the_parts_of_an_answer_are_sent_at_once() -> None:
    async def serves() -> int:
        accepted = asyncio.get_running_loop().create_future()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen(ServeSettings(port=0)) as bound:
            async with await asyncio.start_server(greet, sock=bound):
                with socket.create_connection(bound.getsockname()):
                    return await accepted

    assert asyncio.run(serves())


def test_killed_started_again_and_told_to_end(folders: dict[str, Path]) -> None:
    with process(folders["speaker"]) as (server, url):
        answer = httpx.get(f"{url}/health", timeout=60, trust_env=False)
        assert answer.status_code == 200
        server.send_signal(signal.SIGKILL)
        assert server.wait(60) == -signal.SIGKILL
    with process(folders["speaker"]) as (server, url):
        client = httpx.Client(base_url=url, timeout=60, trust_env=False)
        body = {"prompt": ["the cat"] * 8, "max_tokens": 100, "stop": "zzz"}
        client.post("/v1/completions", json={"prompt": "a"})
        answers: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: answers.append(client.post("/v1/completions", json=body))
        )
        asking.start()
        Running(url, Models([])).until("qkv_requests_open", 1, model="speaker")
        server.send_signal(signal.SIGTERM)
        asking.join()
        assert answers[0].status_code == 200
        assert len(answers[0].json()["choices"]) == 8
        _, log = server.communicate()
        assert server.returncode == 0
        assert all(json.loads(line)["time"] for line in log.splitlines())
        assert "the cat" not in log


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    settings = {**SPEAKER, "max_length": 5000, "eos": -100.0}
    folder = folder_of(speaker(vocabulary("bpe"), **settings), tmp_path / "speaker")
    with process(folder) as (server, url):
        body = {**BODY, "stream": True, "max_tokens": 4900}
        with httpx.stream(
            "POST", f"{url}/v1/completions", json=body, timeout=60, trust_env=False
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            assert server.returncode is None  # it finishes what runs
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 128 + signal.SIGTERM
