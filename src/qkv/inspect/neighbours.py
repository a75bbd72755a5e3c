"""Embeddings to look at: whose vectors point the same way, and all of them on a plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len

from qkv.inspect.fonts import drawable, visible
from qkv.inspect.maps import clipped
from qkv.inspect.style import COLOURS, MARKERS, Numbers, array, caption, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.0, 6.0  # inches of the plane
TYPE = 8.0  # points
Box = tuple[float, float, float, float]  # left, bottom, right, top in points


def nearest(table: Any, token_id: int, k: int = 10) -> list[tuple[int, float]]:
    """The k rows of an embedding table whose cosine with one row is highest: ids and cosines."""
    values = array(table)
    sizes = np.linalg.norm(values, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = values @ values[token_id] / (sizes * sizes[token_id])
    cosines = np.nan_to_num(cosines, nan=0.0)  # a row of zeros points nowhere
    order = [int(each) for each in np.argsort(-cosines, kind="stable") if each != token_id]
    return [(each, float(cosines[each])) for each in order[:k]]


def principal_plane(vectors: Any) -> tuple[Numbers, Numbers]:
    """Vectors (n, D) seen where they spread most, (n, 2), and each axis's share of variance."""
    values = array(vectors)
    centred = values - values.mean(axis=0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    # a singular vector's sign is chance: let its largest component be positive
    strongest = np.take_along_axis(right, np.abs(right).argmax(axis=1)[:, None], axis=1)[:, 0]
    points = left * sizes * np.where(strongest < 0, -1.0, 1.0)
    shares = sizes**2 / ((sizes**2).sum() or 1.0)
    room = max(0, 2 - points.shape[1])
    return np.pad(points, ((0, 0), (0, room)))[:, :2], np.pad(shares, (0, room))[:2]


def draw_embedding(
    vectors: Any,
    labels: Sequence[str],
    groups: Sequence[str] | None = None,
    title: str = "",
    *,
    viewer_fonts: bool = False,
) -> Figure:
    """Vectors (n, D) as labelled points on their principal plane, a colour and marker a group."""
    points, shares = principal_plane(vectors)
    names = [clipped(visible(label), 16) for label in labels]
    kinds = [""] * len(names) if groups is None else list(groups)
    if not len(points) == len(names) == len(kinds):
        raise ValueError(f"{len(points)} vectors, {len(names)} labels, {len(kinds)} groups")
    drawn, note = drawable([*names, *kinds, title], viewer_fonts)
    names, kinds, title = drawn[: len(names)], drawn[len(names) : -1], drawn[-1]
    with styled():
        figure, axes = new_figure(WIDTH + 0.8, HEIGHT + 0.9)
        _scatter(axes, points, kinds)
        left_out = _label(axes, points, names)
        for axis, share, name in zip(
            (axes.xaxis, axes.yaxis), shares, ("first", "second"), strict=True
        ):
            axis.set_label_text(f"{name} principal component ({share:.0%} of the variance)")
        rest = f"{left_out} labels are left out where they would cover others." if left_out else ""
        caption(figure, title, " ".join(filter(None, [note, rest])))
    return figure


def _scatter(axes: Axes, points: Numbers, kinds: list[str]) -> None:
    order = list(dict.fromkeys(kinds))
    for place, kind in enumerate(order):
        chosen = points[[each == kind for each in kinds]]
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axes.scatter(chosen[:, 0], chosen[:, 1], s=22, color=colour, marker=marker, label=kind)
    margin = np.ptp(points, axis=0) * 0.08 + 1e-9
    low, high = points.min(axis=0) - margin, points.max(axis=0) + margin
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    if order != [""]:
        # beside the plane, where it covers no label
        axes.figure.legend(loc="outside right upper")


def _label(axes: Axes, points: Numbers, names: list[str]) -> int:
    """Write each label where it covers least; how many found no place."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    scale = np.array([WIDTH * 72 / (right - left), HEIGHT * 72 / (top - bottom)])
    spots = (points - np.array([left, bottom])) * scale  # in points of type
    taken: list[Box] = [(x - 3, y - 3, x + 3, y + 3) for x, y in spots]
    left_out = 0
    for spot, point, name in zip(spots, points, names, strict=True):
        size = cell_len(name) * TYPE * 0.6, TYPE * 1.1
        choices = list(_places(spot, size))
        cost, best = min(
            (sum(_overlap(box, other) for other in taken), place)
            for place, (_, box) in enumerate(choices)
        )
        if cost > 0.35 * size[0] * size[1]:
            left_out += 1
            continue
        offset, box = choices[best]
        taken.append(box)
        axes.annotate(
            name,
            point,
            offset,
            textcoords="offset points",
            fontsize=TYPE,
            parse_math=False,
            ha="center",
            va="center",
            annotation_clip=False,
        )
    return left_out


def _places(spot: Numbers, size: tuple[float, float]) -> Iterator[tuple[tuple[float, float], Box]]:
    """Where a label may stand around its point, the best first: offset of its middle, its box."""
    wide, tall = size[0] / 2, size[1] / 2
    for away in (5.0, 11.0):
        across, up = wide + away, tall + away
        sides = [(across, 0), (0, up), (-across, 0), (0, -up)]
        corners = [(across, up), (-across, up), (-across, -up), (across, -up)]
        for right, above in sides + corners:
            x, y = spot[0] + right, spot[1] + above
            yield (right, above), (x - wide, y - tall, x + wide, y + tall)


def _overlap(one: Box, other: Box) -> float:
    """The area that two boxes share."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    up = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, across) * max(0.0, up)
