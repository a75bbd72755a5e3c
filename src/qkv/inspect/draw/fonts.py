"""Fonts of figures: one for Latin script, and one for Chinese if the machine has it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

LATIN = "DejaVu Sans"  # comes with matplotlib
PREFERRED = [
    "Noto Sans CJK SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
]
IN_NOTE = 12  # numbered characters that a note lists one by one


def families() -> list[str]:
    """Font families in the order in which a character is looked up."""
    chinese = chinese_font()
    return [LATIN] if chinese is None else [LATIN, chinese]


@cache
def accept_regular_weight() -> None:
    """Let a Chinese font without a bold face be drawn in its regular one without a warning."""
    logger = logging.getLogger("matplotlib.font_manager")
    logger.addFilter(lambda record: "Failed to find font weight" not in str(record.msg))


@cache
def chinese_font() -> str | None:
    """Find the family of a font with Chinese characters: a preferred one if possible, else any."""
    from matplotlib.font_manager import fontManager

    font = _preferred(fontManager.ttflist)
    if font is None:
        _list_new_fonts()
        font = _preferred(fontManager.ttflist) or _any(fontManager.ttflist)
    return font


def _preferred(entries: Iterable[Any]) -> str | None:
    by_name = {entry.name: entry for entry in entries if entry.name in PREFERRED}
    return next((name for name in PREFERRED if name in by_name and _has(by_name[name], "我")), None)


def _any(entries: Iterable[Any]) -> str | None:
    """Any family with 我: better with simplified characters, better without serifs."""
    # The Last Resort font draws a box for every character.
    able = [entry for entry in entries if "Last" not in entry.name and _has(entry, "我")]
    key = lambda entry: (not _has(entry, "们"), "Sans" not in entry.name, entry.name)  # noqa: E731
    return min(able, key=key).name if able else None


def _list_new_fonts() -> None:
    """Add fonts that were installed after matplotlib cached its list, collections included."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    listed = {str(entry.fname) for entry in fontManager.ttflist}
    for path in sorted(set(findSystemFonts()) - listed):
        try:
            fontManager.addfont(path)
        except Exception:  # a broken font file is skipped, whatever is wrong with it
            continue


def _has(entry: Any, character: str) -> bool:
    try:
        face = _open(entry.fname, getattr(entry, "index", 0))
    except (OSError, RuntimeError):  # removed or damaged since it was listed
        return False
    return bool(face.get_char_index(ord(character)))


def _open(path: str, index: int) -> Any:
    from matplotlib.ft2font import FT2Font

    # Older versions of matplotlib read only the first face of a collection.
    return FT2Font(str(path), face_index=index) if index else FT2Font(str(path))


@cache
def _face(family: str) -> Any:
    from matplotlib.font_manager import FontProperties, findfont

    path = findfont(FontProperties(family=[family]))
    return _open(path, getattr(path, "face_index", 0))


def missing(text: str) -> set[str]:
    """Characters of a text that no font of this machine has."""
    faces = [_face(family) for family in families()]
    return {
        character
        for character in set(text) - {"\n"}
        if not any(face.get_char_index(ord(character)) for face in faces)
    }


def number_missing(texts: Sequence[str]) -> tuple[list[str], str | None]:
    """Replace characters without a font by ⟨1⟩, ⟨2⟩ …, and explain that in a sentence."""
    lacking = missing("".join(texts))
    if not lacking:
        return list(texts), None
    numbers: dict[str, int] = {}
    runs = re.compile("[" + re.escape("".join(sorted(lacking))) + "]+")
    drawn = [
        runs.sub(lambda run: f"⟨{numbers.setdefault(run[0], len(numbers) + 1)}⟩", text)
        for text in texts
    ]
    legend = ", ".join(f"⟨{number}⟩ = {run}" for run, number in list(numbers.items())[:IN_NOTE])
    rest = f" and {len(numbers) - IN_NOTE} more" if len(numbers) > IN_NOTE else ""
    return drawn, (
        f"{legend}{rest}: no font on this machine has these characters, so install one that does "
        "(Debian and Ubuntu: fonts-noto-cjk; macOS and Windows have one) or write .svg or .html, "
        "which use the viewer's fonts."
    )


def code_points(text: str) -> str:
    """Write characters without a font as code points, such as U+6211."""
    lacking = missing(text)
    points = "".join(f"U+{ord(char):04X} " if char in lacking else char for char in text)
    return re.sub(r"(U\+\w+) (?=[,:;. ])", r"\1", points)
