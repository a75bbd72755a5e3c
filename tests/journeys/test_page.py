"""A page of `qkv inspect` in a real browser: nothing from elsewhere, nothing cut off."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import qkv as package
from tests.journeys.conftest import Command

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt install chromium)"),
]
TEXT = "3 1 4"

# Written into the page before it is opened; what it finds is read from the finished document.
ASK = """<script>addEventListener("load", () => {
  const shade = cell => getComputedStyle(cell).backgroundColor;
  const maps = [...document.querySelectorAll("table.map")].map(map => ({
    rows: [...map.querySelectorAll("tbody th")].map(head => head.textContent),
    cells: [...map.querySelectorAll("tbody td")].map(cell => [
      cell.title, shade(cell), cell.offsetWidth > 0 && cell.offsetHeight > 0]),
  }));
  const found = {
    maps, resources: performance.getEntriesByType("resource").length,
    headings: [...document.querySelectorAll("h2")].map(head => head.textContent),
    wide: document.documentElement.scrollWidth, window: innerWidth,
    pictures: [...document.querySelectorAll("svg")].map(one => one.getBoundingClientRect().height),
  };
  const answer = document.createElement("pre");
  answer.id = "found";
  answer.textContent = JSON.stringify(found);
  document.body.append(answer);
});</script>"""


def open_page(page: Path, width: int) -> dict[str, Any]:
    """What the browser makes of a page in a window of so many pixels."""
    asked = page.with_name(f"asked-{page.name}")
    asked.write_text(page.read_text(encoding="utf-8") + ASK, encoding="utf-8")
    profile = f"--user-data-dir={page.parent / 'profile'}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", profile]
    command = [str(BROWSER), *options, "--dump-dom", asked.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answer = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert answer, done.stderr[-500:]
    found: dict[str, Any] = json.loads(unescape(answer[1]))
    return found


@pytest.fixture
def page(qkv: Command, model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "inside.html"
    answer = qkv("inspect", model, "--source", TEXT, "--out", path)
    assert answer.code == 0, answer
    return path


def test_a_page_shows_every_view_within_its_window_and_fetches_nothing(
    page: Path, model: Path
) -> None:
    found = open_page(page, width=1400)
    for heading in (
        "From input to output",
        "Step by step",
        "Attention",
        "Logit lens",
        "Attribution",
        "Beam search",
    ):
        assert heading in found["headings"]
    assert found["resources"] == 0
    assert found["pictures"] and min(found["pictures"]) > 50

    # Maps have a cell for each pair of tokens, and darker ones for more
    trace = package.load(model, device="cpu").trace(TEXT)
    weights = trace["encoder.0.self_attention.weights"][0, 0]
    tokens = trace.tokens("source")
    first = next(one for one in found["maps"] if len(one["rows"]) == len(tokens))
    assert len(first["cells"]) == weights.numel()
    assert all(seen for _, _, seen in first["cells"])
    shades = {shade for _, shade, _ in first["cells"]}
    assert len(shades) > 1  # more weight is another colour

    for shown in (found, open_page(page, width=500)):
        assert shown["wide"] <= shown["window"] + 1
