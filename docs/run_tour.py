"""Run the guided tour: execute its Python blocks, write outputs and pictures, make the notebooks.

python docs/run_tour.py            # docs/tour.md and docs/tour.zh.md, their pictures and notebooks

A ```python block is a cell. Its printed output, and its last value, replace the ```text block that
follows it; a picture that follows it shows the last value. A cell that begins with
`# needs: NAME` is left as it is where that model is not there. Code is written in tour.md; the
other page takes it from there.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nbformat

DOCS = Path(__file__).parent
PAGES = {"tour.md": "en", "tour.zh.md": "zh"}  # and the language of their pictures
CODE = "tour.md"  # the page whose code both have
BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```\n"
    r"(?:\n```text\n(?P<output>.*?)```\n)?"
    r"(?:\n!\[(?P<title>[^\]]*)\]\((?P<picture>[^)]+)\)\n)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Cell:
    """A piece of the tour: prose, or code with its output and its picture."""

    prose: str = ""
    code: str = ""
    output: str = ""
    picture: str = ""
    title: str = ""

    @property
    def needs(self) -> str:
        """Name of the pulled model that the code needs."""
        first = self.code.partition("\n")[0]
        return first.removeprefix("# needs: ") if first.startswith("# needs: ") else ""

    def markdown(self) -> str:
        """The piece as it stands in the page."""
        if not self.code:
            return self.prose
        output = f"\n```text\n{self.output}```\n" if self.output else ""
        picture = f"\n![{self.title}]({self.picture})\n" if self.picture else ""
        return f"```python\n{self.code}```\n{output}{picture}"


def cells(page: str) -> Iterator[Cell]:
    """Split a page into prose and code."""
    end = 0
    for block in BLOCK.finditer(page):
        yield Cell(prose=page[end : block.start()])
        parts = {name: value or "" for name, value in block.groupdict().items()}
        yield Cell(**parts)
        end = block.end()
    yield Cell(prose=page[end:])


def run(
    cell: Cell, names: dict[str, Any], pictures: Path | None, picture_language: str = "en"
) -> Cell:
    """Execute a cell; returns it with its output, and writes its picture below `pictures`."""
    from qkv.inspect.draw.language import language

    if not cell.code or (cell.needs and not available(cell.needs)):
        return cell
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        value = execute(cell.code, names)
        if value is not None and not cell.picture:
            print(value)
    if cell.picture and pictures is not None:
        with language(picture_language):
            draw(value, pictures / cell.picture)
    return replace(cell, output=printed.getvalue())


def execute(code: str, names: dict[str, Any]) -> Any:
    """Run code as a notebook does: the value of a last expression is returned."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<tour>", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "<tour>", "eval"), names)


def draw(value: Any, path: Path) -> None:
    """Write the picture of an answer, or a figure."""
    from qkv.inspect.draw.figure import save_figure

    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(value.draw() if hasattr(value, "draw") and hasattr(value, "parts") else value, path)


def available(name: str) -> bool:
    """Whether a packaged or pulled model is there."""
    from qkv.errors import UserError
    from qkv.shelf import find_model

    try:
        return find_model(name).exists()
    except UserError:
        return False


def notebook(pieces: list[Cell]) -> nbformat.NotebookNode:
    """Build a notebook without outputs: whoever opens it runs it."""
    made = nbformat.v4.new_notebook()
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for number, piece in enumerate(pieces):
        text = (piece.code or piece.prose).strip("\n")
        if text:
            new = nbformat.v4.new_code_cell if piece.code else nbformat.v4.new_markdown_cell
            made.cells.append(new(text, id=f"cell-{number}"))
    return made


def read_page(name: str) -> list[Cell]:
    """Read a page with the code of tour.md."""
    own = list(cells((DOCS / name).read_text(encoding="utf-8")))
    first = list(cells((DOCS / CODE).read_text(encoding="utf-8")))
    if [bool(cell.code) for cell in own] != [bool(cell.code) for cell in first]:
        raise SystemExit(f"{name} has other cells than {CODE}; give it the same ones.")
    return [replace(cell, code=model.code) for cell, model in zip(own, first, strict=True)]


def main() -> None:
    """Run both pages and write them, their pictures and their notebooks."""
    for name, picture_language in PAGES.items():
        path, names = DOCS / name, {"__name__": "tour"}
        pieces = [run(cell, names, DOCS, picture_language) for cell in read_page(name)]
        path.write_text("".join(piece.markdown() for piece in pieces), encoding="utf-8")
        nbformat.write(notebook(pieces), path.with_suffix(".ipynb"))
        print(f"{name}: {sum(bool(piece.code) for piece in pieces)} cells")


if __name__ == "__main__":
    main()
