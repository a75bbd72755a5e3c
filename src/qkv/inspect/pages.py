"""Small HTML that stands alone: no scripts, no files from elsewhere, light and dark.

Each function gives a fragment that carries its own style under the class `qkv-glass`, so that it
can stand in a notebook as well as in a page of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from qkv.inspect.fonts import visible
from qkv.inspect.maps import panels, shut_cells
from qkv.inspect.style import Numbers, array

VALUES_SHOWN = 144  # cells up to which a map shows its numbers, not just their colours

STYLE = """
.qkv-glass{--ink:#1a1a1a;--paper:#fff;--line:#ddd;--soft:#666;--warm:#0072b2;--cold:#fff;
--minus:#b35806;--on:#fff;--shut:#e4e4e4;color:var(--ink);background:var(--paper);padding:.5em;
font:14px/1.45 system-ui,"Noto Sans CJK SC","PingFang SC","Microsoft YaHei",sans-serif}
@media(prefers-color-scheme:dark){.qkv-glass{--ink:#e8e8e8;--paper:#16181c;--line:#3a3d44;
--soft:#a0a0a0;--warm:#56b4e9;--cold:#1c1f24;--minus:#e69f00;--on:#000;--shut:#33363c}}
.qkv-glass .qkv-glass{padding:0}
.qkv-glass h1{font-size:1.5em;margin:.2em 0 .6em}
.qkv-glass h2{font-size:1.15em;margin:1.2em 0 .4em}
.qkv-glass p{max-width:46em;margin:.4em 0}
.qkv-glass .scroll{overflow-x:auto}
.qkv-glass table{border-collapse:collapse;margin:.3em 0;color:inherit;font-size:13px}
.qkv-glass caption{font-weight:600;text-align:left;padding:.2em 0;color:inherit;white-space:nowrap}
.qkv-glass table.plain td,.qkv-glass table.plain th{border-bottom:1px solid var(--line);
padding:.25em .7em;text-align:left;background:none}
.qkv-glass table.map td{--v:0%;padding:0;text-align:center;min-width:1.1em;height:1.25em;
font-size:11px;border:1px solid var(--paper);
background:color-mix(in srgb,var(--warm) var(--v),var(--cold));color:var(--ink)}
.qkv-glass table.map.few td{min-width:3.4em;height:2.2em}
.qkv-glass table.map td.minus{
background:color-mix(in srgb,var(--minus) var(--v),var(--cold))}
.qkv-glass table.map td.much{color:var(--on)}
.qkv-glass table.map td.shut{background:
repeating-linear-gradient(45deg,var(--shut) 0 3px,transparent 3px 6px)}
.qkv-glass table.map th{font-weight:400;padding:0 .4em;background:none;color:inherit;
white-space:nowrap}
.qkv-glass table.map tbody th{text-align:right}
.qkv-glass table.map thead th{vertical-align:bottom;padding:.2em 0}
.qkv-glass table.map:not(.few) thead th span{writing-mode:vertical-rl}
.qkv-glass .grid{display:flex;flex-wrap:wrap;gap:1em}
.qkv-glass .grid table.map td{min-width:1.1rem;height:1.1rem;font-size:0}
.qkv-glass .grid table.map th{font-size:10px}
.qkv-glass .grid table.map thead th span{writing-mode:vertical-rl}
.qkv-glass .soft{color:var(--soft);font-size:12px}
"""


def fragment(body: str) -> str:
    """A piece of HTML with the style that it needs, ready for a notebook."""
    return f'<div class="qkv-glass"><style>{STYLE}</style>{body}</div>'


def page(title: str, sections: Sequence[str]) -> str:
    """A whole page from fragments or other HTML."""
    head = (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        "<style>body{margin:0 auto;max-width:75em}"
        "@media(prefers-color-scheme:dark){body{background:#16181c}}</style></head>"
    )
    body = f"<h1>{escape(title)}</h1>" + "\n".join(sections)
    return f"{head}\n<body>{fragment(body)}</body></html>\n"


def section(heading: str, *bodies: str) -> str:
    """A heading and what stands under it."""
    return fragment(f"<section><h2>{escape(heading)}</h2>{''.join(bodies)}</section>")


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> str:
    """A plain table."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return fragment(
        f'<div class="scroll"><table class="plain">{_caption(title)}'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def heat_map(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    allowed: Any = None,
) -> str:
    """Weights (T, S) as a table with tokens on both axes; each cell tells its value."""
    values = array(weights)
    shut = shut_cells(values, allowed)
    strongest = _strongest(values, shut)
    return fragment(
        f'<div class="scroll">{_map(values, shut, rows, columns, title, strongest)}</div>'
    )


def heat_maps(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str = "",
    allowed: Any = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> str:
    """Weights (H, T, S) or (L, H, T, S) as a grid of small tables in one scale of colours."""
    values, names = panels(weights, layers, heads)
    shut = shut_cells(values, allowed)
    strongest = _strongest(values, shut)
    bodies = []
    for layer, layer_shut, layer_names in zip(values, shut, names, strict=True):
        maps = zip(layer, layer_shut, layer_names, strict=True)
        inner = "".join(_map(x, no, rows, columns, name, strongest) for x, no, name in maps)
        bodies.append(f'<div class="grid">{inner}</div>')
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return fragment(heading + "".join(bodies))


def _strongest(values: Numbers, shut: Any) -> float:
    return float(np.abs(values[~shut]).max(initial=0)) or 1.0


def _caption(title: str) -> str:
    return f"<caption>{escape(title)}</caption>" if title else ""


def _map(
    values: Numbers,
    shut: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    strongest: float,
) -> str:
    if values.shape != (len(rows), len(columns)):
        raise ValueError(f"{len(rows)} rows × {len(columns)} columns named, {values.shape} given")
    down, across = [escape(visible(row)) for row in rows], [escape(visible(c)) for c in columns]
    few = values.size <= VALUES_SHOWN
    top = "".join(f"<th><span>{column}</span></th>" for column in across)
    lines = []
    for row, numbers, closed in zip(down, values, shut, strict=True):
        each = zip(across, numbers, closed, strict=True)
        cells = "".join(_cell(f"{row} → {to}", x, no, strongest, few) for to, x, no in each)
        lines.append(f"<tr><th>{row}</th>{cells}</tr>")
    return (
        f'<table class="map{" few" if few else ""}">{_caption(title)}'
        f"<thead><tr><th></th>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _cell(name: str, value: float, shut: bool, strongest: float, few: bool) -> str:
    if shut:
        return f'<td class="shut" title="{name}: masked"></td>'
    share = abs(value) / strongest
    marks = " ".join(["minus"] * int(value < 0) + ["much"] * int(share > 0.55))
    kind = f' class="{marks}"' if marks else ""
    shown = f"{value:.2f}" if few else ""
    return f'<td{kind} style="--v:{share:.0%}" title="{name}: {value:.4g}">{shown}</td>'
