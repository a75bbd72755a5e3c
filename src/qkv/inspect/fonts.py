"""Fonts for figures: one for Latin script, and one for Chinese where the machine has it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

LATIN = "DejaVu Sans"  # comes with matplotlib, so that it is everywhere
KNOWN = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "STHeiti",
    "Microsoft YaHei",
    "SimHei",
    "DengXian",
    "Noto Sans CJK JP",
    "Noto Sans CJK TC",
    "Droid Sans Fallback",
    "Noto Serif CJK SC",
    "Source Han Serif SC",
    "Songti SC",
    "SimSun",
    "AR PL UMing CN",
    "Arial Unicode MS",
    "Unifont",
)
IN_NOTE = 12  # stand-ins that a note explains one by one

SPACES = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "↵", "\u3000": "␣"}


def families() -> list[str]:
    """Font families in the order in which a character is looked for."""
    chinese = chinese_font()
    return [LATIN] if chinese is None else [LATIN, chinese]


@cache
def chinese_font() -> str | None:
    """The family of a font with Chinese characters: a well-known one if possible, else any."""
    from matplotlib.font_manager import fontManager

    known = _known(fontManager.ttflist)
    if known is None:
        _list_new_fonts()
        known = _known(fontManager.ttflist) or _any(fontManager.ttflist)
    return known


def _known(entries: Iterable[Any]) -> str | None:
    """The first of the known families that is here and has Chinese indeed."""
    by_name = {entry.name: entry for entry in entries if entry.name in KNOWN}
    return next((name for name in KNOWN if name in by_name and _has(by_name[name], "我")), None)


def _any(entries: Iterable[Any]) -> str | None:
    """Whichever family has 我: rather with simplified characters, rather without serifs."""
    # the Last Resort font has a box for every character, which is what must not be drawn
    able = [entry for entry in entries if "Last" not in entry.name and _has(entry, "我")]
    key = lambda entry: (not _has(entry, "们"), "Sans" not in entry.name, entry.name)  # noqa: E731
    return min(able, key=key).name if able else None


def _list_new_fonts() -> None:
    """Tell matplotlib of fonts that were installed after it made its list, collections too."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    listed = {str(entry.fname) for entry in fontManager.ttflist}
    for path in sorted(set(findSystemFonts()) - listed):
        try:
            fontManager.addfont(path)
        except Exception:  # whatever is wrong with a font file, there are others
            continue


def _has(entry: Any, character: str) -> bool:
    try:
        face = _open(entry.fname, getattr(entry, "index", 0))
    except (OSError, RuntimeError):  # listed once, gone or broken now
        return False
    return bool(face.get_char_index(ord(character)))


def _open(path: str, index: int) -> Any:
    from matplotlib.ft2font import FT2Font

    # older versions of matplotlib know the first face of a collection alone
    return FT2Font(str(path), face_index=index) if index else FT2Font(str(path))


@cache
def _face(family: str) -> Any:
    from matplotlib.font_manager import FontProperties, findfont

    found = findfont(FontProperties(family=[family]))
    return _open(found, getattr(found, "face_index", 0))


def missing(text: str) -> set[str]:
    """The characters that no font here has."""
    faces = [_face(family) for family in families()]
    return {
        character
        for character in set(text) - {"\n"}
        if not any(face.get_char_index(ord(character)) for face in faces)
    }


def drawable(texts: Sequence[str], viewer_fonts: bool = False) -> tuple[list[str], str | None]:
    """The texts with ⟨1⟩, ⟨2⟩ … for what no font has, and a sentence that says so.

    Where the viewer's fonts are used (.svg, .html), the characters stay as they are.
    """
    lacking = set() if viewer_fonts else missing("".join(texts))
    if not lacking:
        return list(texts), None
    numbers: dict[str, int] = {}
    runs = re.compile("[" + re.escape("".join(sorted(lacking))) + "]+")
    drawn = [
        runs.sub(lambda run: f"⟨{numbers.setdefault(run[0], len(numbers) + 1)}⟩", text)
        for text in texts
    ]
    return drawn, _note(numbers)


def _note(numbers: dict[str, int]) -> str:
    legend = ", ".join(f"⟨{number}⟩ = {run}" for run, number in list(numbers.items())[:IN_NOTE])
    rest = f" and {len(numbers) - IN_NOTE} more" if len(numbers) > IN_NOTE else ""
    return (
        f"{legend}{rest}: no font on this machine has these characters, so install one that does "
        "(Debian and Ubuntu: fonts-noto-cjk; macOS and Windows have one) or write .svg or .html, "
        "which use the viewer's fonts."
    )


def spelled(text: str) -> str:
    """The same with code points, such as U+6211, for what no font has: a note inside a figure."""
    lacking = missing(text)
    points = "".join(f"U+{ord(each):04X} " if each in lacking else each for each in text)
    return re.sub(r"(U\+\w+) (?=[,:;. ])", r"\1", points)


def visible(token: str) -> str:
    """A token with its spaces and line ends to be seen, so that no label is blank."""
    return "".join(SPACES.get(character, character) for character in token) or "∅"
