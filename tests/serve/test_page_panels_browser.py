"""Every panel of the page: it can be saved, shown as Python that runs, and read by everybody."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import qkv
from tests.serve.reader import NEEDED, Reader

pytestmark = NEEDED
CROSS = "decoder.2.cross_attention"
CHANGES = f"&changes=off:{CROSS}:head=1&changes=off:encoder.0.feed_forward"
SECTIONS = {
    "river": f"?open=decoder.2&at={CROSS}.weights&head=2&row=1&column=1{CHANGES}",
    "heads": "?section=heads",
    "write": f"?section=write&reference=I like you.{CHANGES}",
    "compare": "?section=compare&word=苹果&sentences=我吃苹果&sentences=苹果很好",
    "positions": "?section=positions",
    "training": "?section=training",
    "tour": "?section=tour",
}
READY = {
    "river": "#inspector [data-value]",
    "heads": ".head-large .map",
    "write": ".forced td",
    "compare": ".cosines td",
    "positions": ".words-map text",
    "training": ".samples li",
    "tour": ".lab button",
}
N_PANELS = {
    "river": 2,  # the inspector and the list of changes
    "heads": 1,
    "write": 5,
    "compare": 2,
    "positions": 4,
    "training": 4,
    "tour": 2,
}
ALL = [
    (language, size, theme)
    for language in ("en-US", "zh-CN")
    for size in ("desktop", "phone")
    for theme in ("light", "dark")
]
OTHERS = ALL[1:] if os.environ.get("QKV_ALL_READERS") else [ALL[7]]  # than the usual reader
BUTTONS = ".exports:visible [data-export={}]"


@pytest.mark.parametrize("reader", OTHERS, indirect=True, ids="-".join)
@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_serious_stands_in_the_way_of_other_readers(reader: Reader, section: str) -> None:
    opened(reader, section)
    assert_readable(reader)
    reader.keep(f"panels-{section}")


def assert_readable(reader: Reader) -> None:
    """Find nothing that stands in anybody's way on the page as it is shown."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core")
    wide = reader.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    found = axe.Axe().run(reader.page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious] == []


def opened(reader: Reader, section: str) -> Any:
    """The page with everything of a section drawn."""
    page = reader.open(SECTIONS[section])
    page.wait_for_selector(READY[section])
    reader.settle()
    return page


@pytest.mark.parametrize("section", SECTIONS)
def test_every_panel_is_readable_can_be_saved_and_its_python_gives_its_number(
    reader: Reader, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qkv, "load", load_once)
    page = opened(reader, section)
    assert_readable(reader)
    reader.keep(f"panels-{section}")
    buttons = page.locator(BUTTONS.format("python"))
    assert buttons.count() == N_PANELS[section]
    for number in range(buttons.count()):
        buttons.nth(number).click()
        shown = page.locator(".exports:visible").nth(number).locator(".python")
        printed = run_python(shown.inner_text())
        if told := shown.get_attribute("data-number"):
            assert float(printed.strip("[]")) == pytest.approx(float(told), rel=2e-3, abs=1e-4)
        else:
            assert printed
        with page.expect_download() as download:
            page.locator(BUTTONS.format("svg")).nth(number).click()
        root = ElementTree.parse(Path(download.value.path())).getroot()
        assert len(root) > 1  # more than its paper
    with page.expect_download() as download:
        page.locator(BUTTONS.format("png")).last.click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


@functools.cache
def load_once(model: str, dtype: str | None = None) -> Any:
    """Load a model by its name, or by its folder."""
    return qkv.tasks.load(model, "cpu", dtype)


def run_python(code: str) -> str:
    """Run Python as it is shown; return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "shown on the page", "exec"), {})
    return printed.getvalue().strip()
