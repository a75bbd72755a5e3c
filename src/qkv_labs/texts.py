"""The texts of the labs: `en.toml` and `zh.toml` in each lab's folder, two beside this file.

A text has a name, the same in both files, and holds `{named}` values. `[supports]` and
`[contradicts]` of `en.toml` name the work in `literature.toml` that bears on a sub-claim. In
`zh.toml`, `[cells]` maps the English cells and headings of tables, in which `{}` stands for any
text; `[headings]` overrides it where a word means something else at the head of a column.
`[labels]` maps the texts of figures.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv_labs.lab import Comparison, Lab, Literature, M, Settings, SubClaim, Table, Verdict, Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent


def read(path: str) -> dict[str, Any]:
    """Return the content of a TOML file of the labs."""
    return tomllib.loads((FOLDER / path).read_text(encoding="utf-8"))


@cache
def works() -> dict[str, str]:
    """Return the works that sub-claims are held against, by short name: authors, year, title."""
    return read("literature.toml")


class Texts:
    """The texts of a lab in English and Chinese."""

    def __init__(self, lab: str = "") -> None:
        self.lab = lab

    @cached_property
    def english(self) -> dict[str, Any]:
        """The content of the lab's `en.toml`."""
        return read(f"{self.lab}/en.toml" if self.lab else "en.toml")

    @cached_property
    def chinese(self) -> dict[str, Any]:
        """The content of the lab's `zh.toml`."""
        return read(f"{self.lab}/zh.toml" if self.lab else "zh.toml")

    def __call__(self, name: str, /, **values: Any) -> Words:
        """Fill values into the English and the Chinese text of this name."""
        spoken = {
            language: {
                key: getattr(value, language) if isinstance(value, Words) else value
                for key, value in values.items()
            }
            for language in ("en", "zh")
        }
        return Words(
            self.english[name].format(**spoken["en"]), self.chinese[name].format(**spoken["zh"])
        )

    def table(
        self,
        title: str,
        columns: Mapping[str, Any] | Sequence[str],
        items: Iterable[Any],
        /,
        **values: Any,
    ) -> Table:
        """Make a row of each item under the text of this name.

        A column is a format of the item, `{0}`, or a function of it; under mere headings items are
        rows themselves.
        """
        rows = list(items)
        if isinstance(columns, Mapping):
            cells = columns.values()
            rows = [
                [cell.format(item) if isinstance(cell, str) else cell(item) for cell in cells]
                for item in rows
            ]
        return Table(self(title, **values), list(columns), rows)

    def verdict(
        self, values: Mapping[str, Any] = {}, /, **comparisons: Comparison | Sequence[Comparison]
    ) -> Verdict:
        """Judge each sub-claim by its comparisons; `values` are filled into the sub-claims."""
        sub_claims = []
        for name, decisive in comparisons.items():
            several = [decisive] if isinstance(decisive, Comparison) else list(decisive)
            sub_claims.append(SubClaim(self(name, **values), several, self._literature(name), name))
        return Verdict(sub_claims)

    def _literature(self, sub_claim: str) -> Literature | None:
        for table, supports in (("supports", True), ("contradicts", False)):
            if work := self.english.get(table, {}).get(sub_claim):
                return Literature(supports, works()[work])
        return None

    def make_lab(
        self,
        measure: Callable[[Settings], M],
        tables: Callable[[M], Sequence[Table]],
        draw: Callable[[M], Figure],
        judge: Callable[[M], Verdict],
        values: Mapping[str, Any] = {},
        **options: Any,
    ) -> Lab[M]:
        """Make the lab of these functions; `values` are filled into the text of its experiment."""
        texts = self("title"), self("claim"), self("experiment", **values)
        return Lab(self.lab, *texts, measure, tables, draw, judge, **options)

    @cached_property
    def _cells(self) -> dict[str, str]:
        common = COMMON.chinese["cells"] if self.lab else {}
        return {**common, **self.chinese.get("cells", {})}

    @cached_property
    def _labels(self) -> dict[str, str]:
        common = COMMON.chinese["labels"] if self.lab else {}
        return {**self._cells, **common, **self.chinese.get("labels", {})}

    def cell(self, text: str, heading: bool = False) -> str:
        """Translate a cell or a heading; numbers, notation and unknown words stay as they are."""
        headings = self.chinese.get("headings", {})
        if heading and text in headings:
            return headings[text]
        return _translate(text, self._cells)

    def label(self, text: str) -> str:
        """Translate a text of a figure, as `cell` does; `[labels]` overrides the cells."""
        return _translate(text, self._labels)

    def column(self, name: str) -> Words:
        """Return the name of an arm or a column in both languages."""
        return Words(name, self.cell(name))


def _translate(text: str, texts: Mapping[str, str]) -> str:
    """Look a text up; `{}` in a key stands for any text, which is translated in its turn."""
    if text in texts:
        return texts[text]
    for pattern, chinese in _patterns(tuple(texts.items())):
        if match := pattern.fullmatch(text):
            return chinese.format(*(_translate(part, texts) for part in match.groups()))
    return text


@cache
def _patterns(texts: tuple[tuple[str, str], ...]) -> list[tuple[re.Pattern[str], str]]:
    """Compile the keys with `{}`, the longest first, since those say most."""
    longest = sorted(texts, key=lambda item: -len(item[0]))
    return [
        (re.compile(re.escape(english).replace(r"\{\}", "(.+)"), re.DOTALL), chinese)
        for english, chinese in longest
        if "{}" in english
    ]


COMMON = Texts()
