"""Figures into files: pictures, and pages whose text stays text."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import UserError
from qkv.files import replacing
from qkv.inspect.fonts import drawable
from qkv.inspect.pages import page
from qkv.inspect.style import caption, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMS = {".png": "png", ".svg": "svg", ".pdf": "pdf", ".html": "html"}
# no date and no version, so that the same figure gives the same file
METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
VIEWER_FONTS = "'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"


def uses_viewer_fonts(path: Path) -> bool:
    """Whether characters stay characters in such a file, so that its viewer finds their fonts."""
    return path.suffix.lower() in (".svg", ".html")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as its file's ending says, or leave the file before it untouched."""
    ending = path.suffix.lower()
    if ending not in FORMS:
        raise UserError(
            f"{path} ends in {ending or 'nothing'}, but a figure is written as "
            f"{', '.join(FORMS)}; choose one of these endings."
        )
    if ending == ".html":
        drawn = page(_title(figure) or path.stem, [svg_fragment(figure)]).encode()
    elif ending == ".svg":
        drawn = svg(figure).encode()
    else:
        with _spelt_with_fonts_here(figure):
            drawn = _render(figure, FORMS[ending])
    with replacing(path) as beside:
        beside.write_bytes(drawn)


@contextmanager
def _spelt_with_fonts_here(figure: Figure) -> Iterator[None]:
    """Stand-ins in every text that no font here can draw, and a note that says so, for a while."""
    from matplotlib.text import Text

    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.draw_without_rendering()  # or else ticks are not written yet
    ticks = _ticks(figure)
    texts = [one for one in figure.findobj(Text) if one.get_text()]
    before = [one.get_text() for one in texts]
    drawn, note = drawable(before)
    if note is None:
        yield
        return
    spelt = dict(zip(before, drawn, strict=True))
    for axis, _, labels in ticks:  # which are written anew with every drawing
        axis.set_ticks(axis.get_majorticklocs(), [spelt.get(label, label) for label in labels])
    for one, text in zip(texts, drawn, strict=True):
        one.set_text(text)
    under = figure.get_supxlabel()
    caption(figure, "", "  ".join(filter(None, [under, note])))
    try:
        yield
    finally:
        figure.supxlabel(under)
        for one, text in zip(texts, before, strict=True):
            one.set_text(text)
        for axis, formatter, _ in ticks:
            axis.set_major_formatter(formatter)


def _ticks(figure: Figure) -> list[tuple[Any, Any, list[str]]]:
    """Axes whose ticks have labels that no font here can draw, with who writes these."""
    axes = [axis for one in figure.axes for axis in (one.xaxis, one.yaxis)]
    found = [
        (axis, axis.get_major_formatter(), [one.get_text() for one in axis.get_majorticklabels()])
        for axis in axes
    ]
    return [one for one in found if drawable(one[2])[1] is not None]


def svg(figure: Figure) -> str:
    """A figure whose text stays text, in fonts that its viewer has."""
    drawn = _render(figure, "svg").decode()
    return re.sub(r"('DejaVu Sans'[^;\"]*)", rf"\1, {VIEWER_FONTS}", drawn)


def svg_fragment(figure: Figure) -> str:
    """The same without its XML head, to stand inside HTML."""
    drawn = svg(figure)
    return f'<div style="overflow-x:auto;background:#fff">{drawn[drawn.index("<svg") :]}</div>'


def _render(figure: Figure, form: str) -> bytes:
    target = io.BytesIO()
    with styled(), warnings.catch_warnings():
        if form == "svg":  # its viewer has the glyph, or says so
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(
            target, format=form, metadata=METADATA[form], bbox_inches="tight", pad_inches=0.1
        )
    return target.getvalue()


def _title(figure: Figure) -> str:
    title: str = figure.get_suptitle()
    return " ".join(title.split())
