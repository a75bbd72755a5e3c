"""Labels of tokens: spaces made visible, cut to a width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

WIDE = "\u2e80-\uffef"  # Chinese characters and their punctuation, among others
# What a line break may not split: a word, a wide character with its stops, a short bracket.
UNBROKEN = re.compile(
    rf"\s*(?:（[^（）\s]{{1,8}}）|[（「《]*(?:[^\s{WIDE}]+|[{WIDE}]))[，。；：、）」》！？]*"
)
# What a line break may not split in a formula: a symbol or a function of one, with the operator
# before and the brackets after it; an operator between spaces and what follows it.
FACTORS = re.compile(r"[·⊙+/]?(?:[^·⊙+/()]+\([^()]*\)+|[^·⊙+/()]*\(+|[^·⊙+/()]+\)*)|.")
TERMS = re.compile(r"(?<![·⊙+*]) ")
SPACES = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥", "\r": "↵", "\u3000": "␣"})


def decimal(value: float, form: str = ".2f") -> str:
    """Write a number with a minus sign that is not a hyphen, and without the sign of zero."""
    text = format(value, form)
    is_zero = form[-1] in "fge" and not float(text)
    return (text.replace("-", "") if is_zero else text).replace("-", "−")


def units(named: Iterable[tuple[str, float]], form: str) -> str:
    """Write names with numbers as the units of a table's cell, which no line break splits."""
    return "  ".join(f"{visible(name)} {decimal(value, form)}" for name, value in named)


def upright(label: str) -> str:
    """Write a label of Chinese characters alone downwards, one below the other."""
    return "\n".join(label) if re.fullmatch(f"[{WIDE}]+", label) else label


def visible(token: str) -> str:
    """Show a token's spaces and line ends as symbols, so that no label is blank."""
    return token.translate(SPACES) or "∅"


def wrapped(text: str, cells: int) -> str:
    """Break a text into lines of this many terminal cells; Chinese may break at any character."""
    if not re.search(f"[{WIDE}]", text):
        return textwrap.fill(text, cells, break_on_hyphens=False)
    lines = [""]
    for unit in UNBROKEN.findall(text):
        if lines[-1] and cell_len(lines[-1] + unit.rstrip()) > cells:
            lines.append("")
        lines[-1] += unit if lines[-1] else unit.lstrip()
    return "\n".join(lines)


def wrapped_formula(formula: str, cells: int) -> str:
    """Break a formula into lines at spaces, else before operators, never inside a symbol."""
    return "\n".join(
        line.strip()
        for part in packed(TERMS.split(formula), cells, " ").split("\n")
        for line in packed(FACTORS.findall(part), cells, "").split("\n")
    )


def packed(units: Sequence[str], cells: int, between: str = "  ") -> str:
    """Write as many units in a line as fit, and none in two lines."""
    lines = [units[0]] if units else [""]
    for unit in units[1:]:
        longer = f"{lines[-1]}{between}{unit}"
        if cell_len(longer) <= cells:
            lines[-1] = longer
        else:
            lines.append(unit)
    return "\n".join(lines)


def clipped(label: str, cells: int) -> str:
    """Cut a label to a number of terminal cells, with … where something was cut."""
    return label if cell_len(label) <= cells else set_cell_size(label, cells - 1).rstrip() + "…"
