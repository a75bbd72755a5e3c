"""Somebody who reads the page in a real browser; the browser and the server are shared."""

from __future__ import annotations

import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
NEEDED = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt install chromium)"),
]
SCREENSHOTS = os.environ.get("QKV_SCREENSHOTS")  # a folder that the tests leave pictures in
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}


class Reader:
    """Somebody at a page, who notices errors and requests to other machines."""

    def __init__(self, browser: Any, address: str, given: tuple[str, str, str] | None) -> None:
        language, size, theme = given or ("en-US", "desktop", "light")
        width, height = SIZES[size]
        self.address, self.kind = address, "".join(f"-{word}" for word in given or ())
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
        """Save a screenshot, where a folder for them is named; its name says whose it is."""
        if SCREENSHOTS:
            from PIL import Image

            self.settle()
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            picture = Image.open(io.BytesIO(self.page.screenshot()))
            method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE  # keeps rare colours
            small = picture.convert("RGB").quantize(256, method, dither=dither)
            small.save(Path(SCREENSHOTS) / f"{name}{self.kind}.png", optimize=True)
