"""How what a trace says draws itself: figures, and fragments of HTML for notebooks and pages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len

from qkv.inspect.fonts import drawable, visible
from qkv.inspect.pages import fragment, heat_map, paragraph, table
from qkv.inspect.style import COLOURS, DIVERGING, MARKERS, array, caption, new_figure, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from qkv.inspect.attribution import Attribution
    from qkv.inspect.compare import Comparison
    from qkv.inspect.drift import Drift
    from qkv.inspect.lens import Lens
    from qkv.inspect.steps import Step
    from qkv.inspect.trace import Trace
    from qkv.inspect.tree import BeamTree

MOST = 60  # outputs of a figure or a table; of more, the last ones are shown
ABREAST = 24  # outputs of a lens, whose candidates stand side by side
HARD_SPACE = "\u00a0"  # in names that are no tokens, whose spaces are not to be seen
METHODS = {"integrated": "integrated gradients", "gradient": "gradient × input"}
TREE_HEAD = ("step", "after", "token", "P", "log P of all", "fate", "why")


def trace_fragment(trace: Trace) -> str:
    """What was read, and every quantity with its formula and shape; nothing is computed for it."""
    rows = [
        (key, trace.formula(key), ", ".join(trace.axes(key)), _times(trace.shape(key)))
        for key in trace
    ]
    sides = [("source", trace.reading.source), ("target", trace.reading.target)]
    texts = [paragraph(f"{name}: {' '.join(trace.tokens(name))}") for name, read in sides if read]
    return fragment("".join(texts) + table(("quantity", "formula", "axes", "shape"), rows))


def steps_rows(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """Steps as rows of a table."""
    return [
        (
            str(step.position),
            visible(step.after),
            "  ".join(f"{visible(one.name)} {one.probability:.3f}" for one in step.candidates),
            f"{step.entropy:.3f}",
            "" if step.label is None else f"{visible(step.label.name)} (rank {step.rank})",
        )
        for step in steps
    ]


STEPS_HEAD = ("step", "after", "candidates", "entropy (nats)", "came, or should")


def draw_steps(steps: Sequence[Step], viewer_fonts: bool = False) -> Figure:
    """Bars of the best candidates' probabilities, one row a step, and its entropy beside it."""
    left_out = _left_out(len(steps), "steps")
    steps = steps[-MOST:]
    most = max(len(step.candidates) for step in steps)
    words = [visible(one.name) for step in steps for one in step.candidates]
    afters = [f"{step.position}: after {visible(step.after)}" for step in steps]
    drawn, note = drawable([*words, *afters], viewer_fonts)
    names, afters = iter(drawn[: len(words)]), drawn[len(words) :]
    with styled():
        figure, axes = new_figure(8.4, max(2.0, 0.42 * len(steps) + 1.1))
        for place, step in enumerate(steps):
            left = 0.0
            for rank, one in enumerate(step.candidates):
                name = next(names)
                colour = COLOURS[rank % 6]
                axes.barh(-place, one.probability, left=left, color=colour, edgecolor="white")
                if one.probability > 0.012 * (cell_len(name) + 3):
                    axes.text(
                        left + 0.005,
                        -place,
                        name,
                        va="center",
                        fontsize=8,
                        color="white",
                        weight="bold",
                        parse_math=False,
                    )
                left += one.probability
            axes.text(1.01, -place, f"{step.entropy:.2f}", va="center", fontsize=8)
        axes.text(1.01, 0.75, "entropy (nats)", va="center", fontsize=8)
        axes.set_yticks([-place for place in range(len(steps))], afters, parse_math=False)
        axes.set(xlim=(0, 1), ylim=(0.4 - len(steps), 1.1))
        axes.set(xlabel=f"probability of the {most} best candidates, side by side")
        axes.grid(False)
        title = "How each step went: the wider a bar, the surer the model"
        caption(figure, title, _notes(left_out, note))
    return figure


def draw_lens(lens: Lens, viewer_fonts: bool = False) -> Figure:
    """The best candidate of each layer at each output, coloured by its probability."""
    left_out = _left_out(len(lens.tokens), "outputs", ABREAST)
    lens = last_outputs(lens, ABREAST)
    best = [visible(names[0]) for layer in lens.names for names in layer]
    drawn, note = drawable([*best, *map(visible, lens.tokens)], viewer_fonts)
    texts, tokens = drawn[: len(best)], drawn[len(best) :]
    width = len(lens.tokens)
    with styled():
        figure, axes = new_figure(max(4.5, 0.85 * width + 1.8), 0.34 * len(lens.layers) + 1.7)
        image = axes.imshow(
            array(lens.probabilities[:, :, 0]), aspect="auto", vmin=0, vmax=1, origin="lower"
        )
        for place, text in enumerate(texts):
            row, column = divmod(place, width)
            dark = float(lens.probabilities[row, column, 0]) < 0.6
            axes.text(
                column,
                row,
                text[:12],
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else "black",
                parse_math=False,
            )
        axes.set_xticks(range(width), tokens, rotation=45 if width > 8 else 0, parse_math=False)
        axes.set_yticks(range(len(lens.layers)), lens.layers)
        axes.grid(False)
        axes.set(xlabel="at this token")
        figure.colorbar(image, ax=axes, label="probability of the best candidate")
        caption(figure, "What each layer would say if it were the last one", _notes(left_out, note))
    return figure


def last_outputs(lens: Lens, most: int = MOST) -> Lens:
    """What a lens says of the last outputs alone."""
    return replace(
        lens,
        tokens=lens.tokens[-most:],
        names=tuple(layer[-most:] for layer in lens.names),
        probabilities=lens.probabilities[:, -most:],
        of_last=lens.of_last[:, -most:],
        entropy=lens.entropy[:, -most:],
    )


def _left_out(count: int, what: str, most: int = MOST) -> str | None:
    return f"The last {most} of {count:,} {what} are drawn." if count > most else None


def _notes(*notes: str | None) -> str:
    return " ".join(note for note in notes if note)


def lens_fragment(lens: Lens) -> str:
    """A table: the best candidates of each layer at each of the last outputs."""
    lens = last_outputs(lens)
    rows = [
        (name, *map(_guesses, layer, lens.probabilities[place].tolist()))
        for place, (name, layer) in enumerate(zip(lens.layers, lens.names, strict=True))
    ]
    return table(("", *map(visible, lens.tokens)), rows[::-1], "Logit lens, last layer first")


def _guesses(names: Sequence[str], probable: Sequence[float]) -> str:
    pairs = zip(names, probable, strict=True)
    return "  ".join(f"{visible(name)} {value:.2f}" for name, value in pairs)


def draw_drift(drift: Drift, viewer_fonts: bool = False) -> Figure:
    """Cosine to the input, and distance from it, over the layers."""
    tokens, note = drawable([visible(token) for token in drift.tokens], viewer_fonts)
    named = len(tokens) <= len(MARKERS)
    with styled():
        figure, panels = new_figure(8.4, 3.4, ncols=2)
        for axes, values in zip(panels, (drift.cosine, drift.distance), strict=True):
            _lines(axes, values.cpu().T.tolist(), tokens, named)
            axes.set_xticks(range(len(drift.layers)), drift.layers, rotation=45, ha="right")
        panels[0].set(
            ylabel="cosine to the input", ylim=(min(-0.05, float(drift.cosine.min())), 1.05)
        )
        panels[1].set(ylabel="distance from the input / its length")
        if named:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
        caption(figure, "How far the residual stream has moved from its input", note)
    return figure


def _lines(axes: Axes, values: list[list[float]], names: Sequence[str], named: bool) -> None:
    """A line a token while they can be told apart, and else the mean over thin lines."""
    for place, (line, name) in enumerate(zip(values, names, strict=True)):
        if named:
            axes.plot(line, label=name, marker=MARKERS[place % len(MARKERS)])
        else:
            axes.plot(line, color="#999999", linewidth=0.5, alpha=0.6)
    if not named:
        mean = [sum(point) / len(point) for point in zip(*values, strict=True)]
        axes.plot(mean, color=COLOURS[0], linewidth=2.4)


def drift_fragment(drift: Drift) -> str:
    """A map: the cosine to the input of each token after each layer."""
    layers = [layer.replace(" ", HARD_SPACE) for layer in drift.layers]
    return heat_map(drift.cosine, layers, drift.tokens, "Cosine to the input, by layer")


def draw_attribution(found: Attribution, viewer_fonts: bool = False) -> Figure:
    """One panel a side that was read: outputs downwards, tokens to the right."""
    sides = list(found.scores)
    left_out = _left_out(len(found.outputs), "outputs")
    names = [visible(one) for one in found.outputs[-MOST:]]
    words = [[visible(one) for one in found.tokens[side]] for side in sides]
    drawn, note = drawable([*names, *(one for each in words for one in each)], viewer_fonts)
    outputs, rest = drawn[: len(names)], iter(drawn[len(names) :])
    limit = max(float(scores.abs().max()) for scores in found.scores.values()) or 1.0
    count = sum(map(len, words))
    every = max(1, count // 80)  # the labels that have room
    with styled():
        figure, panels = new_figure(
            max(4.5, 0.42 * min(count, 80) + 2.5),
            max(2.6, 0.34 * len(outputs) + 1.6),
            ncols=len(sides),
            squeeze=False,
            width_ratios=[len(each) for each in words],
        )
        for axes, side, each in zip(panels[0], sides, words, strict=True):
            image = axes.imshow(
                array(found.scores[side][-MOST:]),
                cmap=DIVERGING,
                vmin=-limit,
                vmax=limit,
                aspect="auto",
            )
            labels = [next(rest) for _ in each]
            axes.set_xticks(
                range(0, len(each), every),
                labels[::every],
                rotation=60,
                ha="right",
                parse_math=False,
            )
            axes.set_yticks(range(len(outputs)), outputs, parse_math=False)
            axes.grid(False)
            axes.set_title(f"{side} tokens that were read")
        panels[0][0].set_ylabel("output")
        figure.colorbar(image, ax=panels[0].tolist(), label="for (above 0) or against it")
        title = f"Which tokens each output leaned on, by {METHODS[found.method]}"
        caption(figure, title, _notes(left_out, note))
    return figure


def attribution_fragment(found: Attribution) -> str:
    """A map for each side that was read."""
    title = f"{METHODS[found.method].capitalize()}: outputs down, {{}} tokens across"
    maps = [
        heat_map(scores, found.outputs, found.tokens[side], title.format(side))
        for side, scores in found.scores.items()
    ]
    return fragment("".join(maps))


def comparison_fragment(found: Comparison) -> str:
    """A table of differences."""
    return table(COMPARISON_HEAD, comparison_rows(found))


COMPARISON_HEAD = ("quantity", "largest difference", "mean", "cosine")


def comparison_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Differences as rows of a table."""
    return [
        (one.key, f"{one.largest:.3g}", f"{one.mean:.3g}", f"{one.cosine:.5f}")
        if one.largest is not None
        else (one.key, "shapes differ", *map(_times, one.shapes))
        for one in found.differences
    ]


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def draw_tree(tree: BeamTree, viewer_fonts: bool = False) -> Figure:
    """The tree as a figure."""
    from qkv.inspect import trees

    return trees.draw_tree(tree, viewer_fonts)


def tree_fragment(tree: BeamTree) -> str:
    """What came out, and every candidate that was looked at."""
    from qkv.inspect import trees

    rows = [
        (name, f"{one.score:.3f}", f"{math.exp(one.log_probability):.3g}")
        for name, one in zip(tree.names, tree.outputs, strict=True)
    ]
    outputs = table(("output", "score", "P"), rows, f"Beam search with {tree.beams} beams")
    return fragment(outputs + table(TREE_HEAD, trees.tree_rows(tree), "Every candidate"))
