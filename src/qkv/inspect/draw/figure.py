"""Figures as files and as HTML; characters without a font never become empty boxes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.text import Text

from qkv.errors import UserError
from qkv.files import replacing
from qkv.inspect.draw.fonts import code_points, families, number_missing
from qkv.inspect.draw.page import page, piece
from qkv.inspect.draw.style import DARK, DARK_TYPE, INK, caption, styled

ENDINGS = (".png", ".svg", ".pdf", ".html")
# No date and no version, so that equal figures give equal files.
METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
NEGATIVE = "filter:invert(1) hue-rotate(180deg)"
# Attributes of an SVG that hold coordinates in points; scales need all of their digits.
COORDINATES = re.compile(
    r' (?:d|x|y|x1|x2|y1|y2|width|height|points|transform)="(?!scale|matrix)[^"]*"'
)
NUMBER = re.compile(r"-?\d+\.\d+")
INK_TEXT = re.compile(rf'(<text style="[^"]*); fill: {INK}')
PATH = re.compile(r'(?<= d=")[^"]*')
COMMAND = re.compile(r"\s*([A-Za-z])\s*")
# What matplotlib writes and no viewer needs: names of groups, turns by nothing, fonts of texts.
NEEDLESS = re.compile(
    r"<!DOCTYPE[^>]*>\n|^ *<metadata>.*?</metadata>\n|^ +|(?<=<g) id=\"[^\"]*\"|"
    r" transform=\"rotate\(-?0[ ,][^)]*\)\"|font-family: [^;\"]*; ",
    re.DOTALL | re.MULTILINE,
)
LEAST_SHARE = 0.7  # of its width, to which a chart in a page may shrink
VIEWER_FONTS = "'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"


class PortableFigure(Figure):
    """A figure whose text stays text in SVG, and has no empty boxes in any other format."""

    def savefig(self, fname: Any, *, transparent: bool | None = None, **settings: Any) -> None:
        """Save as matplotlib does, with numbers for characters that no font here has."""
        ending = Path(fname).suffix[1:] if isinstance(fname, str | Path) else "png"
        vector = settings.get("format", ending) == "svg"
        with nullcontext() if vector else stand_ins(self):
            super().savefig(fname, transparent=transparent, **settings)

    def _repr_html_(self) -> str:
        return str(svg_html(self))


def save_figure(figure: Figure, path: Path) -> str | None:
    """Write a figure in the format of its file's ending.

    Returns a note if this machine has no font for some characters. A failure leaves the old file.
    """
    ending, note = path.suffix.lower(), None
    if ending not in ENDINGS:
        raise UserError(
            f"{path} ends in {ending or 'nothing'}, but a figure is written as "
            f"{', '.join(ENDINGS)}; choose one of these endings."
        )
    if ending == ".html":
        title = " ".join(figure.get_suptitle().split()) or path.stem
        content = page(title, [svg_html(figure)]).encode()
    elif ending == ".svg":
        content = svg(figure).encode()
    else:
        with stand_ins(figure) as note:
            content = _render(figure, ending[1:])
    with replacing(path) as beside:
        beside.write_bytes(content)
    return note


def svg(figure: Figure) -> str:
    """Render as SVG whose text stays text, in the viewer's fonts, and whose colours follow dark."""
    rendered = _ungrouped(NEEDLESS.sub("", _render(figure, "svg").decode()))
    rendered = INK_TEXT.sub(r"\1", rendered)
    rendered = rendered.replace("<svg ", '<svg class="qkv-chart" ', 1)
    rendered = COORDINATES.sub(lambda found: _rounded(found[0]), rendered)
    rendered = PATH.sub(lambda found: COMMAND.sub(r"\1", found[0]), rendered)
    fonts = ", ".join(f"'{family}'" for family in families())
    of_text = f".qkv-chart text{{fill:{INK};font-family: {fonts}, {VIEWER_FONTS}}}"
    style = f"<style>{of_text}{dark_rules(rendered)}</style>"
    return rendered.replace("<defs>", f"{style}\n<defs>", 1)


def _ungrouped(rendered: str) -> str:
    """Leave out groups without attributes; each tag of a group is in a line of its own."""
    kept: list[str] = []
    plain: list[bool] = []  # the open groups
    for line in rendered.split("\n"):
        if line == "<g/>":
            continue
        if line.startswith("<g"):
            plain.append(line == "<g>")
        if not (line in ("<g>", "</g>") and plain[-1]):
            kept.append(line)
        if line == "</g>":
            plain.pop()
    return "\n".join(kept)


def _rounded(coordinates: str) -> str:
    """Round an attribute's numbers to a hundredth of a point, which nobody sees."""
    return NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), coordinates)


def dark_rules(drawn: str) -> str:
    """Style sheet of a chart where the viewer prefers dark: ink and paper change places.

    A map becomes its negative with the hues kept, and so does the type on its cells. Colours that
    the chart does not have need no rule.
    """
    rules = [f".qkv-chart text{{fill:{DARK[INK]}}}", f".qkv-chart image{{{NEGATIVE}}}"]
    type_colours = {"#ffffff": "#000000", "#000000": "#ffffff"}
    type_colours |= {light.lower(): dark for light, dark in DARK_TYPE.items()}
    rules += [
        f'.qkv-chart text[style*="fill: {light}"]{{fill:{dark}!important}}'
        for light, dark in type_colours.items()
        if f"fill: {light}" in drawn
    ]
    for light, dark in DARK.items():
        for paint in ("fill", "stroke"):
            forms = {f'[style*="{paint}: {light}"]': f"{paint}: {light}"}
            forms[f'[{paint}="{light}"]'] = f'{paint}="{light}"'
            of_drawn = [f".qkv-chart {form}" for form, text in forms.items() if text in drawn]
            if of_drawn:
                rules.append(f"{','.join(of_drawn)}{{{paint}:{dark}!important}}")
    return f"@media(prefers-color-scheme:dark){{{''.join(rules)}}}"


def svg_html(figure: Figure) -> Markup:
    """Render as SVG without its XML head, to be part of a page."""
    rendered = svg(figure)
    body = Markup(rendered[rendered.index("<svg") :])  # matplotlib escapes the texts in it
    width = re.search(r'width="([\d.]+)pt"', body)
    # A narrow screen shrinks a chart as long as its type can be read, then lets it scroll.
    least = f"{LEAST_SHARE * float(width[1]):.0f}pt" if width else "0"
    return piece("chart", body, least)


@contextmanager
def stand_ins(figure: Figure) -> Iterator[str | None]:
    """Number the characters that no font here has, with a note below, while in this block."""
    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.draw_without_rendering()  # ticks get their texts when they are drawn
    ticks = [
        (axis, axis.get_major_formatter(), [tick.get_text() for tick in axis.get_majorticklabels()])
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
    ]
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    before = [text.get_text() for text in texts]
    drawn, note = number_missing(before)
    if note is None:
        yield None
        return
    numbered = dict(zip(before, drawn, strict=True))
    changed = [tick for tick in ticks if any(numbered.get(x, x) != x for x in tick[2])]
    for axis, _, labels in changed:  # every drawing writes them anew
        axis.set_ticks(axis.get_majorticklocs(), [numbered.get(x, x) for x in labels])
    for text, new in zip(texts, drawn, strict=True):
        text.set_text(new)
    foot = figure.get_supxlabel()
    caption(figure, "", foot, code_points(note))
    try:
        yield note
    finally:
        figure.supxlabel(foot)
        for text, old in zip(texts, before, strict=True):
            text.set_text(old)
        for axis, formatter, _ in changed:
            axis.set_major_formatter(formatter)


@contextmanager
def _legends_in_place(figure: Figure) -> Iterator[None]:
    """Keep a figure's legends where its layout has them while in this block.

    Else they move to the edge of the tight box, over notes that are below the figure.
    """
    engine = figure.get_layout_engine()
    if not figure.legends or engine is None:
        yield
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)
    try:
        yield
    finally:
        for legend in figure.legends:
            legend.set_bbox_to_anchor(None)
        figure.set_layout_engine(engine)


def _render(figure: Figure, form: str) -> bytes:
    target = io.BytesIO()
    with styled(), warnings.catch_warnings():
        if form == "svg":  # the viewer has the glyph
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        with _legends_in_place(figure):
            # Of the base class, since stand-ins are in place where they are needed.
            Figure.savefig(
                figure,
                target,
                format=form,
                metadata=METADATA[form],
                bbox_inches="tight",
                pad_inches=0.1,
            )
    return target.getvalue()
