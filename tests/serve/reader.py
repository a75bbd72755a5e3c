"""Somebody who reads the page in a real browser; the browser and the server are shared."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.models import KINDS, folder_of

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
NEEDED = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt install chromium)"),
]
SCREENSHOTS = os.environ.get("QKV_SCREENSHOTS")  # a folder that the tests leave pictures in
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}


def launch() -> Iterator[Any]:
    """A headless browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


def serve_page(home: Path) -> Iterator[str]:
    """Serve packaged models and one of images on a free port; `home` has a run of the first."""
    uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn (pip install qkv[serve])")
    import qkv
    from qkv.serve.app import create_app
    from qkv.serve.models import Models

    run = home / "page" / "demo"
    run.mkdir(parents=True)
    for file in (Path(qkv.__file__).parent / "packaged" / "zh-en").iterdir():
        (run / file.name).symlink_to(file)
    records = [{"step": step, "loss": 9 - 0.1 * step, "lr": 1e-3} for step in range(1, 41)]
    records[19] |= {"valid_loss": 6.5}
    records[39] |= {"valid_loss": 5.25, "chrF": 31.5}
    (run / "log.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_HOME", str(home))
        images = folder_of(KINDS["image"](), home / "images")
        app = create_app(Models(["zh-en", "mini-bert", str(images)]))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


class Reader:
    """Somebody at a page, who notices errors and requests to other machines."""

    def __init__(self, browser: Any, address: str, language: str, size: str, theme: str) -> None:
        width, height = SIZES[size]
        self.address = address
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            locale=language,
            color_scheme=theme,
            reduced_motion="reduce",
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.troubles: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", self._watch)

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(message.text)

    def _watch(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.troubles.append(f"asked {request.url}")

    def open(self, query: str = "") -> Any:
        self.page.goto(f"{self.address}/{query}")
        self.page.wait_for_selector("body[data-ready]")
        self.page.wait_for_selector(".word")
        return self.page

    def text(self, selector: str) -> str:
        return re.sub(r"\s+", " ", self.page.inner_text(selector)).strip()

    def until(self, expression: str) -> None:
        """Wait for an expression to be true; the page's policy forbids playwright's own way."""
        for _ in range(600):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"never true: {expression}")

    def settle(self) -> None:
        self.page.wait_for_load_state("networkidle")

    def keep(self, name: str) -> None:
        """Save a screenshot, where a folder for them is named."""
        if SCREENSHOTS:
            from PIL import Image

            self.settle()
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            picture = Image.open(io.BytesIO(self.page.screenshot()))
            method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE  # keeps rare colours
            small = picture.convert("RGB").quantize(256, method, dither=dither)
            small.save(Path(SCREENSHOTS) / f"{name}.png", optimize=True)
