"""Who may ask, and how much: keys, hosts, origins, limits, memory; each refusal has a sentence."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qkv.errors import UserError
from qkv.serve.models import Models
from qkv.serve.settings import ServeSettings
from tests.journeys.conftest import Command, qkv  # noqa: F401
from tests.serve.conftest import Running, running

KEY = "s3cret-钥匙"


def message(answer: httpx.Response, status: int) -> str:
    """The sentence of a refusal in OpenAI's shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    return str(error["message"])


@pytest.fixture(scope="module")
def strict(folders: dict[str, Path]) -> Iterator[Running]:
    """A server that asks for a key and allows little."""
    with running(
        [str(folders["speaker"]), str(folders["spelling"])],
        api_key=KEY,
        cors=("https://page.example",),
        allowed_hosts=("qkv.example",),
        max_body=2000,
        body_seconds=0.5,
        max_tokens=100,
        max_rows=4,
    ) as found:
        yield found


def test_a_key_is_needed_for_all_that_costs(strict: Running) -> None:
    with strict.client() as client:
        for path in ("/health", "/ready", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("POST", "/v1/completions"),
            ("POST", "/translate"),
            ("GET", "/languages"),
        ):
            refused = client.request(method, path)
            assert "needs its API key" in message(refused, 401)
            assert refused.headers["www-authenticate"] == "Bearer"
        for wrong in ("x", KEY[:-1], f"{KEY} x"):
            headers = {"Authorization": f"Bearer {wrong}".encode()}
            message(client.get("/v1/models", headers=headers), 401)
        right = {"Authorization": f"Bearer {KEY}".encode()}
        assert client.get("/v1/models", headers=right).status_code == 200


def test_libretranslates_clients_bring_their_key_in_the_body(strict: Running) -> None:
    with strict.client() as client:
        body = {"q": "cat", "api_key": KEY}
        assert client.post("/translate", json=body).status_code == 200
        assert client.post("/translate", data=body).status_code == 200
        message(client.post("/translate", json={"q": "cat", "api_key": "no"}), 401)
        message(client.post("/translate", json=[KEY]), 401)
        message(client.post("/v1/completions", json={"prompt": "a", "api_key": KEY}), 401)


@pytest.fixture
def allowed(strict: Running) -> Iterator[httpx.Client]:
    with strict.client(headers={"Authorization": f"Bearer {KEY}".encode()}) as client:
        yield client


def test_large_bodies_are_turned_away(allowed: httpx.Client) -> None:
    assert "2,000 bytes" in message(allowed.post("/score", json={"texts": "a" * 3000}), 413)

    # The sender hears why even if more is under way than sockets hold.
    message(allowed.post("/score", content=b"a" * 8_000_000), 413)

    # Nor does it help to keep the size to oneself.
    message(allowed.post("/score", content=iter([b"a" * 900] * 3)), 413)
    message(allowed.post("/score", content=iter([b"a" * 900_000] * 8)), 413)


def test_who_never_stops_sending_is_hung_up_on(strict: Running) -> None:
    head = (
        f"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        f"Authorization: Bearer {KEY}\r\n\r\n"
    )
    with strict.connect() as endless:
        endless.sendall(head.encode())
        with pytest.raises(OSError):  # the pipe is broken, or the connection reset
            for _ in range(2**26 // 4096):
                endless.sendall(b"1000\r\n" + b"a" * 4096 + b"\r\n")


def test_a_body_that_never_ends_is_given_up(strict: Running) -> None:
    with strict.connect() as slow:
        head = (
            f"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            f"Authorization: Bearer {KEY}\r\n\r\n{{"
        )
        slow.sendall(head.encode())
        slow.settimeout(60)
        answer = ""
        while part := slow.recv(4096):  # until the server hangs up
            answer += part.decode()
    assert answer.startswith("HTTP/1.1 408")
    assert "did not arrive within 0.5 seconds" in answer


def test_limits_of_a_request(allowed: httpx.Client) -> None:
    asked = {"prompt": "a", "max_tokens": 5}
    too_long = allowed.post("/v1/completions", json={**asked, "max_tokens": 150})
    assert "at most 100 at a time" in message(too_long, 422)
    many = allowed.post("/v1/completions", json={**asked, "n": 5})
    assert "at most 4 at a time" in message(many, 422)
    assert "at most 4" in message(allowed.post("/score", json={"texts": ["a"] * 5}), 422)
    assert "at most 100" in message(allowed.post("/score", json={"texts": "the cat " * 60}), 422)
    assert "empty list" in message(allowed.post("/score", json={"texts": []}), 422)
    assert "not JSON" in message(
        allowed.post("/score", content=b'{"texts": ', headers={"Content-Type": "application/json"}),
        422,
    )
    as_a_form = allowed.post("/score", data={"texts": "a"})  # what curl -d sends
    assert "with the header Content-Type: application/json" in message(as_a_form, 422)
    for wrong, where in ((5, "texts"), (["a", 5], "texts.1")):
        sentence = f"{where}: Input should be a valid string."
        assert sentence == message(allowed.post("/score", json={"texts": wrong}), 422)
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    for turn, sentence in (
        ({"content": picture}, "messages.0.content.0.type: Input should be 'text'."),
        ({}, "messages.0.content: Field required."),
    ):
        asked = allowed.post("/v1/chat/completions", json={"messages": [{"role": "user", **turn}]})
        assert sentence == message(asked, 422)
    message(allowed.get("/../../etc/passwd"), 404)
    message(allowed.get("/score"), 405)


def test_models_are_those_given_and_no_paths(allowed: httpx.Client, folders: Any) -> None:
    for name in (str(folders["tagger"]), "../tagger", "/etc/passwd", "zh-en"):
        answer = allowed.post("/score", json={"texts": "a", "model": name})
        assert "There is no model" in message(answer, 404)
        assert answer.json()["error"]["code"] == "model_not_found"


def test_other_names_of_this_machine_are_refused(strict: Running, server: Running) -> None:
    def status(of: Running, host: str) -> int:
        with of.client() as client:
            return client.get("/health", headers={"Host": host}).status_code

    for host in ("evil.example", "localhost.evil.example", ""):
        assert status(strict, host) == 403, host
    for host in ("localhost:8000", "127.0.0.1", "[::1]:80", "QKV.example:80"):
        assert status(strict, host) == 200, host
    assert status(server, "qkv.example") == 403


def test_pages_of_other_origins_are_refused_unless_allowed(strict: Running) -> None:
    with strict.client() as client:
        foreign = client.get("/health", headers={"Origin": "https://evil.example"})
        assert "another origin" in message(foreign, 403)
        assert "access-control-allow-origin" not in foreign.headers
        own = client.get("/health", headers={"Origin": strict.url})
        assert own.status_code == 200
        friend = {"Origin": "https://page.example"}
        known = client.get("/health", headers=friend)
        assert known.headers["access-control-allow-origin"] == "https://page.example"
        asked = {**friend, "Access-Control-Request-Method": "POST"}
        flight = client.options("/v1/completions", headers=asked)
        assert flight.status_code == 200
        assert "POST" in flight.headers["access-control-allow-methods"]


def test_every_answer_has_the_security_headers(client: httpx.Client) -> None:
    for path in ("/health", "/nothing", "/v1/models"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "server" not in headers


def test_who_comes_while_a_model_is_busy_is_told_when_to_try_again(
    folders: dict[str, Path],
) -> None:
    with running([str(folders["speaker"])], max_queue=1) as server, server.client() as client:
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        task, goes_on = server.models.workers()["speaker"].task, threading.Event()
        task.score = lambda texts: [goes_on.wait(100)] * 0
        first = threading.Thread(target=lambda: client.post("/score", json={"texts": "a"}))
        first.start()
        server.until("qkv_requests_open", 1, model="speaker")
        refused = server.client().post("/v1/completions", json={"prompt": "a"})
        assert "1 requests to answer already" in message(refused, 429)
        assert refused.headers["retry-after"] == "1"
        goes_on.set()
        first.join()
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_a_request_that_takes_too_long_is_given_up(folders: dict[str, Path]) -> None:
    with running([str(folders["speaker"])], max_seconds=0.01) as server, server.client() as client:
        body = {"prompt": ["the cat"] * 32, "max_tokens": 190}
        assert "took too long" in message(client.post("/v1/completions", json=body), 503)
        server.until("qkv_rows_running", 0, model="speaker")
        goes_on = threading.Event()
        server.models.workers()["speaker"].task.trace = lambda *given: goes_on.wait(5)
        body = {"text": "the cat", "keys": ["logits"]}
        assert "took too long" in message(client.post("/trace", json=body), 503)
        goes_on.set()


def test_the_least_recently_used_model_makes_room(folders: dict[str, Path]) -> None:
    names = ("speaker", "talker", "labeller")
    given = [str(folders[name]) for name in names]
    sizes = {name: Models(given).offer(name).n_bytes for name in names}
    budget = sizes["speaker"] + max(sizes["talker"], sizes["labeller"])
    with running(given, memory=budget) as server, server.client() as client:

        def loaded() -> list[str]:
            return client.get("/ready").json()["loaded"]

        assert loaded() == []
        assert client.post("/score", json={"texts": "a"}).status_code == 200
        assert client.post("/classify", json={"texts": "a"}).status_code == 200
        assert loaded() == ["speaker", "labeller"]
        client.post("/score", json={"texts": "a"})  # now the other one is the oldest
        assert client.post("/score", json={"texts": "a", "model": "talker"}).status_code == 200
        assert loaded() == ["speaker", "talker"]
    with running(given, memory=10) as server, server.client() as client:
        refused = client.post("/score", json={"texts": "a"})
        assert "--memory allows 10" in message(refused, 503)


def test_a_model_in_8_bits_is_counted_as_such() -> None:
    (name,) = (models := Models(["zh-en"])).names()
    assert models.offer(name).n_bytes < 1.1 * models.offer(name).n_parameters
    whole = Models(["zh-en"], ServeSettings(dtype="fp32")).offer(name)
    assert whole.n_bytes == 4 * whole.n_parameters


def test_models_have_different_names(folders: dict[str, Path], tmp_path: Path) -> None:
    given = str(folders["speaker"])
    assert Models([given, f"other={given}"]).names() == ["speaker", "other"]
    with pytest.raises(UserError, match="Two models have the name 'speaker'"):
        Models([given, given])
    with pytest.raises(UserError, match="neither a path that exists nor a packaged model"):
        Models([str(tmp_path / "none")])


def test_a_broken_model_is_told_of_and_tried_again(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    import shutil

    broken = Path(shutil.copytree(folders["labeller"], tmp_path / "broken"))
    weights = (broken / "model.safetensors").read_bytes()
    with running([str(broken)]) as server, server.client() as client:
        (broken / "model.safetensors").write_bytes(weights[:100])
        refused = message(client.post("/classify", json={"texts": "a"}), 503)
        assert refused == "The model 'broken' cannot be loaded; the server's log says why."
        (broken / "model.safetensors").write_bytes(weights)
        assert client.post("/classify", json={"texts": "a"}).status_code == 200


def test_a_key_is_required_beyond_this_machine(
    qkv: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("QKV_API_KEY", raising=False)
    assert "a key is needed" in qkv("serve", "--host", "0.0.0.0").mistake
    assert "must be a size such as 8G" in qkv("serve", "--memory", "much").mistake
    assert "neither a path" in qkv("serve", "nothing").mistake
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "cannot be listened on" in qkv("serve", "--port", port).mistake


def test_without_the_extra_the_command_says_how_to_install_it(
    qkv: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert qkv("serve").mistake == (
        'qkv serve needs FastAPI and uvicorn; run: pip install "qkv[serve]".'
    )
