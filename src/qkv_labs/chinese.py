"""The labs in Chinese: `zh.toml` in each lab's folder, and one beside this file for all of them.

A text has a name and holds `{named}` values, as its English twin in the code does. `[cells]` maps
the English cells and headings of tables, in which `{}` stands for any text; `[headings]` overrides
it where a word means something else at the head of a column.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv_labs.lab import Lab, M, Settings, Table, Verdict, Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Functions = tuple[
        Callable[[Settings], M],
        Callable[[M], Sequence[Table]],
        Callable[[M], Figure],
        Callable[[M], Verdict],
    ]

FOLDER = Path(__file__).parent


class Texts:
    """The texts of a lab: English from its code, Chinese from its `zh.toml`."""

    def __init__(self, lab: str = "") -> None:
        self.lab = lab

    @cached_property
    def chinese(self) -> dict[str, Any]:
        """The content of the lab's file."""
        return tomllib.loads((FOLDER / self.lab / "zh.toml").read_text(encoding="utf-8"))

    def __call__(self, name: str, english: str, /, **values: Any) -> Words:
        """Fill values into the English text and into the Chinese text of this name."""
        spoken = {
            language: {
                key: getattr(value, language) if isinstance(value, Words) else value
                for key, value in values.items()
            }
            for language in ("en", "zh")
        }
        chinese: str = self.chinese[name]
        return Words(english.format(**spoken["en"]), chinese.format(**spoken["zh"]))

    def make_lab(
        self,
        title: str,
        claim: str,
        experiment: str,
        functions: Functions[M],
        values: Mapping[str, Any] = {},
        **options: Any,
    ) -> Lab[M]:
        """Make the lab of these texts; `values` are filled into its experiment.

        The functions are its `measure`, `tables`, `draw` and `judge`.
        """
        described = self("experiment", experiment, **values)
        return Lab(
            self.lab,
            self("title", title),
            self("claim", claim),
            described,
            *functions,
            **options,
        )

    @cached_property
    def _cells(self) -> dict[str, str]:
        common = COMMON.chinese["cells"] if self.lab else {}
        return {**common, **self.chinese.get("cells", {})}

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        return [
            (re.compile(re.escape(english).replace(r"\{\}", "(.+)")), chinese)
            for english, chinese in self._cells.items()
            if "{}" in english
        ]

    def cell(self, text: str, heading: bool = False) -> str:
        """Translate a cell or a heading; numbers, notation and unknown words stay as they are."""
        headings = self.chinese.get("headings", {})
        if heading and text in headings:
            return headings[text]
        if text in self._cells:
            return self._cells[text]
        for pattern, chinese in self._patterns:
            if match := pattern.fullmatch(text):
                return chinese.format(*match.groups())
        return text

    def column(self, name: str) -> Words:
        """Return the name of an arm or a column in both languages."""
        return Words(name, self.cell(name))


COMMON = Texts()
