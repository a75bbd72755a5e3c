"""A server with a tiny model of each kind, in this process, at a port of its own."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import qkv
from qkv.config import DecodeConfig, TokenizerConfig
from qkv.serve.models import Models
from qkv.serve.server import listen, make_server
from qkv.serve.settings import ServeSettings
from qkv.tasks import Encoder, LanguageModel, Prompting, Translator
from qkv.text import TEMPLATES, train_tokenizer
from tests.proofs.models import KINDS, folder_of
from tests.run.language_tiny import speaker, vocabulary
from tests.serve.reader import BROWSER, Reader
from tests.tasks.understand_tiny import SENTENCE, encoder

SPEAKER = {"letters": "abcdefgh ijklmnop", "max_length": 200, "eos": -2.0}


@dataclass(frozen=True)
class Running:
    """A server that runs, and its models."""

    url: str
    models: Models

    def client(self, **settings: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **settings)

    def connect(self) -> socket.socket:
        """A connection that says what it likes."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)))

    def metric(self, name: str, **labels: str) -> float:
        """A number of /metrics; 0 where it is not there yet."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        for line in lines:
            wanted = all(f'{label}="{value}"' in line for label, value in labels.items())
            if line.partition("{")[0].partition(" ")[0] == name and wanted:
                return float(line.rpartition(" ")[2])
        return 0.0

    def until(self, name: str, value: float, **labels: str) -> None:
        """Wait until a metric has a value."""
        end = time.monotonic() + 60
        while self.metric(name, **labels) != value:
            assert time.monotonic() < end, f"{name} is {self.metric(name, **labels)}"
            time.sleep(0.02)


@contextmanager
def running(given: list[str], **settings: object) -> Iterator[Running]:
    """Serve models in a thread until the block ends."""
    told = ServeSettings(port=0, device="cpu", **settings)
    models = Models(given, told)
    bound = listen(told)
    server = make_server(models)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Running(f"http://127.0.0.1:{bound.getsockname()[1]}", models)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def filler() -> Encoder:
    """An encoder that fills gaps, with a token for them."""
    tokenizer = train_tokenizer([SENTENCE] * 9, TokenizerConfig(kind="char", vocab_size=300))
    tokenizer.add_special(["<mask>"])
    return Encoder(encoder(head="masked", vocab_size=len(tokenizer)), tokenizer)


def searcher() -> LanguageModel:
    """A language model that searches with beams."""
    plain = speaker(vocabulary("bpe"), **SPEAKER)
    return LanguageModel(plain.model, plain.tokenizer, DecodeConfig(beams=3, max_length=8))


def save_tiny_models(root: Path) -> dict[str, Path]:
    """Save a model of each kind that has learnt nothing; return the folders by name."""
    made = {
        "speaker": speaker(vocabulary("bpe"), **SPEAKER),
        "talker": speaker(vocabulary(), Prompting(chat_template=TEMPLATES["plain"]), **SPEAKER),
        "embedder": KINDS["embed"](),
        "filler": filler(),
        "labeller": KINDS["class"](),
        "tagger": KINDS["tag"](),
        "answerer": KINDS["answer"](),
        "spelling": KINDS["translator"](),
        "searcher": searcher(),
    }
    return {name: folder_of(model, root / name) for name, model in made.items()}


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models that have learnt nothing, by name."""
    return save_tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="package", name="speaker")
def loaded_speaker(folders: dict[str, Path]) -> LanguageModel:
    return qkv.load(folders["speaker"], device="cpu")


@pytest.fixture(scope="package")
def translator() -> Translator:
    return qkv.load("zh-en", device="cpu")


@contextmanager
def page_client(models: list[str], **settings: object) -> Iterator[Any]:
    """A client of the page's routes without a server."""
    testclient = pytest.importorskip("fastapi.testclient", reason="needs fastapi and httpx2")
    from qkv.serve.app import create_app

    app = create_app(Models(models, ServeSettings(**settings)))
    with testclient.TestClient(app, base_url="http://localhost") as client:
        yield client


def image_url(path: Path, size: int = 8) -> str:
    """Write an image of noise, and return it as a data URL."""
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    pillow.effect_noise((size, size), 90).convert("RGB").save(path)
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


@pytest.fixture(scope="package")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    """A server of the packaged translator and a tiny model of each other kind."""
    with running(["zh-en", *map(str, folders.values())]) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture(scope="package")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page's address; it shows packaged models, one of images, and a run."""
    home = tmp_path_factory.mktemp("home")
    save_run(home / "page" / "demo")
    images = folder_of(KINDS["image"](), home / "images")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QKV_HOME", str(home))
            server = stack.enter_context(running(["zh-en", "mini-bert", str(images)]))
        yield server.url


def save_run(folder: Path) -> None:
    """A run of the packaged translator, with a log."""
    folder.mkdir(parents=True)
    for file in (Path(qkv.__file__).parent / "packaged" / "zh-en").iterdir():
        (folder / file.name).symlink_to(file)
    records = [{"step": step, "loss": 9 - 0.1 * step, "lr": 1e-3} for step in range(1, 41)]
    records[19] |= {"valid_loss": 6.5}
    records[39] |= {"valid_loss": 5.25, "chrF": 31.5}
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n", "utf-8")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One headless browser for all tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def reader(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """Somebody at the page, who notices every error."""
    reader = Reader(browser, address, getattr(request, "param", None))
    yield reader
    reader.context.close()
    assert reader.troubles == []
