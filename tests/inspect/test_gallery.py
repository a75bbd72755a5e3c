"""The pages with every view as a picture: they show what their script draws, in both languages."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from qkv.inspect.views import VIEWS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def gallery() -> Any:
    """The script that draws the pictures and writes the pages."""
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "figures" / "views.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_shows_every_view_by_the_pictures_that_are_there(
    gallery: Any, language: str
) -> None:
    page = (DOCS / gallery.PAGES[language]).read_text(encoding="utf-8")
    assert page == gallery.page(language)
    assert {*gallery.PICTURES} == {*VIEWS}
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert len(shown) == len({*shown}) == page.count("qkv inspect ")  # and the head
    folder = DOCS / gallery.FOLDERS[language]
    assert {DOCS / picture for picture in shown} == {*folder.glob("*.svg")}


def test_chinese_pictures_are_of_the_same_passes_in_chinese(gallery: Any) -> None:
    english, chinese = (DOCS / gallery.FOLDERS[language] for language in ("en", "zh"))
    assert {x.name for x in english.glob("*.svg")} == {x.name for x in chinese.glob("*.svg")}
    for picture in chinese.glob("*.svg"):
        assert re.search("[\u4e00-\u9fff]", picture.read_text(encoding="utf-8")), picture.name
