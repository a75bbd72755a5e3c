"""The guided tour: its notebooks run, and both languages have the same code."""

import importlib.util
import re
from pathlib import Path

import pytest

from qkv_labs.catalogue import NAMES

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

DOCS = Path(__file__).parents[2] / "docs"


def load_tour():
    spec = importlib.util.spec_from_file_location("run_tour", DOCS / "run_tour.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["run_tour"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def notebook(name):
    return nbformat.read(DOCS / name, as_version=4)


def code(book):
    return [cell.source for cell in book.cells if cell.cell_type == "code"]


def test_both_notebooks_have_the_code_of_the_pages():
    tour = load_tour()
    english = [cell.code.strip("\n") for cell in tour.read_page("tour.md") if cell.code]
    assert len(english) >= 30
    assert code(notebook("tour.ipynb")) == english
    assert code(notebook("tour.zh.ipynb")) == english


def test_every_stop_has_an_exercise_in_both_languages():
    for name, word in (("tour.md", "*Exercise*"), ("tour.zh.md", "*练习*")):
        text = (DOCS / name).read_text(encoding="utf-8")
        stops = text.split("\n### ")[1:]
        assert len(stops) == 30
        assert all(word in stop for stop in stops)


def test_pictures_are_in_the_language_of_their_page():
    tour = load_tour()
    for page, word in (("tour.md", "attention weight"), ("tour.zh.md", "注意力权重")):
        pictures = [cell.picture for cell in tour.read_page(page) if cell.picture]
        drawn = [(DOCS / picture).read_text(encoding="utf-8") for picture in pictures]
        assert len(drawn) == 5
        assert sum(word in picture for picture in drawn) == 3


def test_every_picture_is_there_and_both_pages_have_the_same_ones():
    shown = {}
    for page in ("tour.md", "tour.zh.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        shown[page] = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
        assert all((DOCS / picture).is_file() for picture in shown[page])
    english = [re.sub(r"\.zh(?=\.)|/zh(?=/)", "", picture) for picture in shown["tour.zh.md"]]
    assert english == shown["tour.md"] and len(english) >= 25


def test_every_lab_has_its_place_in_the_tour():
    for page in ("tour.md", "tour.zh.md"):
        named = re.findall(r"qkv lab\s+(\w+)", (DOCS / page).read_text(encoding="utf-8"))
        assert {*named} == {*NAMES}


@pytest.mark.slow
def test_the_notebook_runs():
    tour, book = load_tour(), notebook("tour.ipynb")
    book.cells = [
        cell
        for cell in book.cells
        if cell.cell_type == "code"
        and (not (needs := tour.Cell(code=cell.source + "\n").needs) or tour.available(needs))
    ]
    done = nbclient.NotebookClient(book, timeout=240, kernel_name="python3").execute()
    printed = [
        output.get("text", "")
        for cell in done.cells
        for output in cell.outputs
        if output.output_type == "stream"
    ]
    assert printed[0].startswith("I love you.")
    assert any("True\n" in text for text in printed)
    assert "False\n" not in printed[8:9]
