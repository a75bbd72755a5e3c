"""The page in a real browser: from a key press to the answer, and a model of many layers.

    python -m bench.page                      # typing, with the packaged translator
    python -m bench.page --model smollm2      # also hovering over its river

`qkv serve` runs in a process of its own. Typing is measured from the input event to the frame that
shows the answer, beside what the server and the browser's page needed of the processors; hovering
by the script, style and layout time of each animation frame, which other programs change less than
its pace.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Page, sync_playwright

from bench.measure import Session, parser, run
from bench.serve import cpu_seconds
from qkv.errors import UserError

TEXTS = {
    "translate": "你叫什么名字|他昨天没有来学校|今天天气很好|我们去公园吧|他喝咖啡",
    "continue": "The capital of Spain is|Once upon a night there|My name is|Water is made of|Two",
}
SIZE = {"width": 1440, "height": 900}
FRAMES = 120  # of hovering
NAMES = ("chromium", "chromium-browser", "google-chrome")
WATCH = """() => {
  const times = window.times = { input: 0, drawn: 0, frame: 0 };
  document.querySelector("#text").addEventListener("input", () => {
    times.input = performance.now();
    times.drawn = times.frame = 0;
  }, true);
  new MutationObserver(() => {
    if (times.drawn || document.querySelector("#output.busy, #output .error")) return;
    times.drawn = performance.now();
    requestAnimationFrame(() => setTimeout(() => { times.frame = performance.now(); }));
  }).observe(document.querySelector("#output"), { childList: true });
}"""
ANSWERED = """() => {
  const isAnswer = ({ name }) => name.endsWith("/answer");
  const asked = performance.getEntriesByType("resource").filter(isAnswer).at(-1);
  return { ...window.times, asked: asked.startTime, answered: asked.responseEnd };
}"""
HOVER = """async (frames) => {
  const hits = [...document.querySelectorAll(".hits rect")].filter((hit) => {
    const box = hit.getBoundingClientRect();
    return box.left > 0 && box.right < innerWidth && box.height > 20;
  });
  const moves = [], gaps = [];
  let last = 0;
  for (let n = 0; n < frames; n++) {
    const now = await new Promise(requestAnimationFrame);
    if (last) gaps.push(now - last);
    last = now;
    const hit = hits[n % hits.length], box = hit.getBoundingClientRect();
    const clientY = box.top + ((n * 37) % 100) / 100 * box.height;
    const start = performance.now();
    const options = { bubbles: true, clientX: box.left + 4, clientY };
    hit.dispatchEvent(new MouseEvent("mousemove", options));
    document.body.getBoundingClientRect();
    moves.push(performance.now() - start);
  }
  return { moves, gaps };
}"""


def body(session: Session) -> None:
    """Measure typing and hovering with one model."""
    model = session.options.model
    with served(model, session) as (pid, url, log), browser_page() as (page, devtools):
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        page.wait_for_load_state("networkidle")
        typed(session, page, devtools, pid, log)
        hovered(session, page, devtools)


def typed(session: Session, page: Page, devtools: Any, pid: int, log: Path) -> None:
    """Type texts the server has not seen, one by one."""
    rows: list[dict[str, float]] = []
    page.evaluate(WATCH)
    action = page.evaluate("new URLSearchParams(location.search).get('action')")
    for text in TEXTS[action].split("|"):
        before = snapshot(devtools, pid, log)
        page.fill("#text", text)
        wait_until(page, "window.times.frame > 0")
        shown = page.evaluate(ANSWERED)
        page.wait_for_load_state("networkidle")
        after = snapshot(devtools, pid, log)
        rows.append(
            {
                "input to frame, ms": shown["frame"] - shown["input"],
                "input to request, ms": shown["asked"] - shown["input"],
                "request, ms": shown["answered"] - shown["asked"],
                "response to frame, ms": shown["frame"] - shown["answered"],
                "server CPU, ms": after["server"] - before["server"],
                "page CPU, ms": after["page"] - before["page"],
                "requests": after["requests"] - before["requests"],
            }
        )
    alone = [answer_alone(page, pid, text[1:]) for text in TEXTS[action].split("|")]
    middle = {name: round(median(row[name] for row in rows), 1) for name in rows[0]}
    worst = max(row["input to frame, ms"] for row in rows)
    middle |= {"longest, ms": round(worst, 1), "server CPU of /answer, ms": median(alone)}
    model = session.options.model
    session.record(f"page.typing.{model}", f"typing → answer, `{model}`", middle)


def answer_alone(page: Page, pid: int, text: str) -> float:
    """CPU time in ms that the server needs for one answer."""
    model, action = page.evaluate(
        "['model', 'action'].map((name) => new URLSearchParams(location.search).get(name))"
    )
    url, before = f"{page.url.partition('?')[0]}v1/models/{model}/answer", cpu_seconds(pid)
    page.request.post(url, data={"action": action, "text": text})
    return round(1e3 * (cpu_seconds(pid) - before), 1)


def hovered(session: Session, page: Page, devtools: Any) -> None:
    """Move over the river with two layers open, a token a frame."""
    stack = page.evaluate("document.querySelectorAll('.node.closed').length")
    page.locator(".node.closed").first.click()
    page.locator(".node.closed").first.click()
    page.wait_for_load_state("networkidle")
    bytes_in = page.evaluate(
        "performance.getEntriesByType('resource').reduce((sum, x) => sum + x.transferSize, 0)"
    )
    found = page.evaluate(HOVER, FRAMES)
    moves = sorted(found["moves"])
    session.record(
        f"page.hover.{session.options.model}",
        f"hovering, {stack} layers of `{session.options.model}`",
        {
            "work a frame, ms": round(median(moves), 2),
            "of 95 % of the frames, ms": round(moves[int(0.95 * len(moves))], 2),
            "between frames, ms": round(median(found["gaps"]), 1),
            "elements": page.evaluate("document.querySelectorAll('*').length"),
            "kB fetched": round(bytes_in / 1e3),
        },
    )


def snapshot(devtools: Any, pid: int, log: Path) -> dict[str, float]:
    """CPU time of the server and of the page's tasks in ms, and requests so far."""
    metrics = {x["name"]: x["value"] for x in devtools.send("Performance.getMetrics")["metrics"]}
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {
        "server": 1e3 * cpu_seconds(pid),
        "page": 1e3 * metrics["TaskDuration"],
        "requests": sum("path" in line for line in lines),
    }


def wait_until(page: Page, expression: str) -> None:
    """Wait for an expression to be true; the page's policy forbids Playwright's own way."""
    for _ in range(3000):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(10)
    raise UserError(f"The page never came to {expression}.")


@contextmanager
def served(model: str, session: Session) -> Iterator[tuple[int, str, Path]]:
    """`qkv serve` with one model: its process, address and log."""
    command = [sys.executable, "-m", "qkv", "serve", model, "--port", "0"]
    command += ["--device", session.device.type]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().split()[-1], Path(log.name)
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def browser_page() -> Iterator[tuple[Page, Any]]:
    """A page of a headless browser, and its developer tools."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_context(viewport=SIZE, reduced_motion="reduce").new_page()
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time
        yield page, devtools
        browser.close()


if __name__ == "__main__":
    arguments = parser("bench.page", __doc__)
    arguments.add_argument("--model", default="zh-en", help="model to serve")
    run(body, arguments)
