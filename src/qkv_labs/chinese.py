"""The labs in Chinese: `zh.toml` in each lab's folder, and one beside this file for all of them.

A text has a name and holds `{named}` values, as its English twin in the code does. `[cells]` maps
the English cells and headings of tables, in which `{}` stands for any text; `[headings]` overrides
it where a word means something else at the head of a column. `[labels]` maps the texts of figures.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv_labs.lab import (
    Comparison,
    Lab,
    Literature,
    M,
    Settings,
    SubClaim,
    Table,
    Verdict,
    Words,
)

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

    def verdict(
        self,
        claims: Mapping[str, tuple[str, Literature | None]],
        comparisons: Mapping[str, Comparison | Sequence[Comparison]],
        **values: Any,
    ) -> Verdict:
        """Judge claims, English texts and literature by name, by the comparisons of that name."""
        sub_claims = []
        for name, (english, literature) in claims.items():
            decisive = comparisons[name]
            several = [decisive] if isinstance(decisive, Comparison) else list(decisive)
            sub_claims.append(SubClaim(self(name, english, **values), several, literature))
        return Verdict(sub_claims)

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
