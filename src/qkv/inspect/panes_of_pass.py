"""The panes that look at one pass of a model: from its road of steps to its beam search."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from qkv.inspect import pages, views
from qkv.inspect.flow import draw_flow, flow_page, flow_table
from qkv.inspect.fonts import visible
from qkv.inspect.maps import clipped
from qkv.inspect.panes import (
    IN_PAGE,
    IN_TERMINAL,
    PassPane,
    Subject,
    Wish,
    map_text,
    table_text,
)
from qkv.inspect.road import road
from qkv.inspect.save import svg_fragment
from qkv.inspect.trees import terminal_tree
from qkv.model import Decoder, Encoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.inspect.attribution import Attribution
    from qkv.inspect.drift import Drift
    from qkv.inspect.lens import Lens
    from qkv.inspect.steps import Step
    from qkv.inspect.tree import BeamTree

SEARCHED = 12  # tokens of a language model's tree, which would go on and on
EXPLAINED = 32  # outputs whose inputs are weighed; each costs STEPS passes backwards,
STEPS = 32
EXPLAINED_WORK = 2 * 10**12  # tokens times weights that all of these may go through


class FlowPane(PassPane):
    """Every step with its formula and shape."""

    title = "From input to output"
    about = "Every step in the order of the formulas, with the shape of what it gives."

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """The chart."""
        return draw_flow(road(self.trace), self.about, viewer_fonts=viewer_fonts)

    def html(self) -> str:
        """The steps, a lane beside the other."""
        return flow_page(road(self.trace))

    def numbers(self) -> Any:
        """Name, key, formula and shape of every step, no layer left out."""
        return [
            {
                "name": step.name,
                "key": step.key,
                "formula": step.formula,
                "axes": list(self.trace.axes(step.key)),
                "shape": list(step.shape),
            }
            for step in road(self.trace)
        ]

    def text(self, width: int) -> Iterator[RenderableType]:
        """The table."""
        yield flow_table(road(self.trace), width=width)


class StepsPane(PassPane):
    """What might have come at each step."""

    title = "Step by step"
    about = "The likeliest outputs at each step; entropy 0 is certain, ln V is no idea at all."

    @classmethod
    def lack(cls, subject: Subject, wish: Wish) -> str | None:
        """Some models give vectors or numbers."""
        return _no_probabilities(subject)

    @cached_property
    def steps(self) -> list[Step]:
        """The steps."""
        return self.trace.steps(self.wish.top)

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """Bars."""
        return views.draw_steps(self.steps, viewer_fonts)

    def html(self) -> str:
        """The table, and the bars."""
        return svg_fragment(self.draw(True)) + pages.table(
            views.STEPS_HEAD, views.steps_rows(self.steps)
        )

    def numbers(self) -> Any:
        """Candidates, entropy, label and rank of each step."""
        return [dataclasses.asdict(step) for step in self.steps]

    def text(self, width: int) -> Iterator[RenderableType]:
        """The table; candidates fill the width."""
        steps = self.steps[-IN_TERMINAL:]
        rows = views.steps_rows(steps)
        others = [(row[0], clipped(row[1], 14), row[3], clipped(row[4], 22)) for row in rows]
        head = ("step", "after", "entropy", "came, or should")
        taken = sum(max(map(cell_len, column)) + 2 for column in zip(head, *others, strict=True))
        room = max(20, width - taken - 2)
        packed = [_packed(step, room) for step in steps]
        if len(self.steps) > len(steps):
            yield Text(f"The last {len(steps)} of {len(self.steps):,} steps.", style="italic")
        yield table_text(
            ("step", "after", "candidates", "entropy", "came, or should"),
            [(one[0], one[1], best, *one[2:]) for one, best in zip(others, packed, strict=True)],
        )


def _packed(step: Step, room: int) -> str:
    """Candidates with their probabilities in lines of so many cells."""
    lines = [""]
    for one in step.candidates:
        word = f"{clipped(visible(one.name), 14)} {one.probability:.3f}"
        longer = f"{lines[-1]}  {word}" if lines[-1] else word
        if cell_len(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


class LensPane(PassPane):
    """What each layer would say."""

    title = "Logit lens"
    about = "What each layer would predict if it were the last one."

    @classmethod
    def lack(cls, subject: Subject, wish: Wish) -> str | None:
        """Layers are read with the output's weights."""
        return _no_probabilities(subject)

    @cached_property
    def lens(self) -> Lens:
        """What the layers say."""
        return self.trace.lens(self.wish.top)

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """The best candidate in each cell."""
        return self.lens.draw(viewer_fonts)

    def html(self) -> str:
        """The figure, and the table of candidates."""
        return svg_fragment(self.draw(True)) + self.lens._repr_html_()

    def numbers(self) -> Any:
        """Candidates with their probabilities, and entropy, of each layer and output."""
        return {
            "layers": list(self.lens.layers),
            "tokens": list(self.lens.tokens),
            "candidates": [[list(names) for names in layer] for layer in self.lens.names],
            "probabilities": self.lens.probabilities.tolist(),
            "of_last": self.lens.of_last.tolist(),
            "entropy": self.lens.entropy.tolist(),
        }

    def text(self, width: int) -> Iterator[RenderableType]:
        """Layers downwards, the last first; as many outputs side by side as fit."""
        lens = views.last_outputs(self.lens, IN_TERMINAL)
        fit = max(1, (width - 10) // 15)
        for start in range(0, len(lens.tokens), fit):
            part = slice(start, start + fit)
            rows = [
                (name, *map(_guess, layer[part], values[part, 0].tolist()))
                for name, layer, values in zip(
                    lens.layers, lens.names, lens.probabilities, strict=True
                )
            ]
            heads = [clipped(visible(token), 13) for token in lens.tokens[part]]
            yield table_text(("", *heads), rows[::-1])
            yield ""


def _guess(names: Sequence[str], probability: float) -> str:
    return f"{clipped(visible(names[0]), 8)} {probability:.2f}"


class DriftPane(PassPane):
    """How far the stream moves."""

    title = "Drift"
    about = "How far the residual stream has turned from its input: the cosine, 1 for not at all."

    @cached_property
    def drift(self) -> Drift:
        """Where the stream stands."""
        return self.trace.drift()

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """Cosine and distance over the layers."""
        return self.drift.draw(viewer_fonts)

    def numbers(self) -> Any:
        """Cosine, distance and step of each layer and token."""
        return {
            "layers": list(self.drift.layers),
            "tokens": list(self.drift.tokens),
            "cosine": self.drift.cosine.tolist(),
            "distance": self.drift.distance.tolist(),
            "step": self.drift.step.tolist(),
        }

    def text(self, width: int) -> Iterator[RenderableType]:
        """The cosines, layers downwards."""
        layers = [layer.replace(" ", views.HARD_SPACE) for layer in self.drift.layers]
        yield from map_text(self.drift.cosine, layers, self.drift.tokens, width)


class AttributionPane(PassPane):
    """Which inputs an output leaned on."""

    title = "Attribution"
    about = (
        "What each token adds to the log-odds of each output, by integrated gradients: above 0 for "
        "it, below 0 against it. They follow all that the model does: sounder than rollout."
    )

    @classmethod
    def lack(cls, subject: Subject, wish: Wish) -> str | None:
        """Gradients begin at an output."""
        assert subject.trace is not None
        if "logits" in subject.trace:
            return None
        return "This model gives vectors and no output to explain; look at its attention instead."

    @cached_property
    def found(self) -> Attribution:
        """The last outputs where there are very many."""
        trace = self.trace
        shape = trace.shape("logits")
        count = shape[1] if len(shape) == 3 and trace.reading.says != "spans" else 1
        work = sum(map(len, self._sides())) * sum(x.numel() for x in trace.model.parameters())
        steps = STEPS if STEPS * work <= EXPLAINED_WORK else STEPS // 4
        most = max(1, min(EXPLAINED, EXPLAINED_WORK // (steps * work)))
        if count <= most:
            return trace.attribution(steps=steps)
        self.remarks.append(f"attribution: of the last {most} of {count:,} outputs")
        return trace.attribution(range(count - most, count), steps=steps)

    def _sides(self) -> list[list[str]]:
        sides = [key.partition(".")[0] for key in self.trace.keys("*.input")]
        return [self.trace.tokens(side) for side in sides]

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """Outputs down, tokens across."""
        return self.found.draw(viewer_fonts)

    def html(self) -> str:
        """Tables, or a picture where these would have too many cells."""
        cells = sum(scores.numel() for scores in self.found.scores.values())
        return self.found._repr_html_() if cells <= IN_PAGE else super().html()

    def numbers(self) -> Any:
        """Scores (outputs, tokens) of each side."""
        return {
            "outputs": list(self.found.outputs),
            "positions": list(self.found.positions),
            "tokens": {side: list(names) for side, names in self.found.tokens.items()},
            "scores": {side: scores.tolist() for side, scores in self.found.scores.items()},
        }

    def text(self, width: int) -> Iterator[RenderableType]:
        """A map a side; against is red."""
        for side, scores in self.found.scores.items():
            title = f"outputs down, {side} tokens across"
            yield from map_text(scores, self.found.outputs, self.found.tokens[side], width, title)


class BeamPane(PassPane):
    """The tree of a search."""

    title = "Beam search"
    about = "Every candidate that a search looked at: what was kept, what ended, what was pruned."

    @classmethod
    def lack(cls, subject: Subject, wish: Wish) -> str | None:
        """Encoders do not write."""
        if isinstance(subject.model, Encoder):
            return "An encoder writes nothing, so it has no beam search; look at its attention."
        read = subject.trace.sizes["T"] if subject.trace else 0
        if isinstance(subject.model, Decoder) and read >= subject.model.config.max_length:
            return "The text fills the model's context: a search has no room to go on."
        return None

    @cached_property
    def tree(self) -> BeamTree:
        """The tree; of a language model, its first tokens."""
        settings: dict[str, Any] = {} if self.wish.beams is None else {"beams": self.wish.beams}
        if isinstance(self.subject.model, Decoder):
            own = self.trace.reading.decode.max_length or SEARCHED
            settings["max_length"] = min(own, SEARCHED)
            self.remarks.append(f"beam: the search goes {settings['max_length']} tokens far")
        return self.trace.beam_tree(**settings)

    def draw(self, viewer_fonts: bool = False) -> Figure:
        """The tree."""
        return self.tree.draw(viewer_fonts)

    def html(self) -> str:
        """The tree, what came out, and every candidate."""
        return svg_fragment(self.draw(True)) + self.tree._repr_html_()

    def numbers(self) -> Any:
        """Outputs and nodes."""
        outputs = zip(self.tree.names, self.tree.outputs, strict=True)
        return {
            "beams": self.tree.beams,
            "length_penalty": self.tree.length_penalty,
            "outputs": [
                {"tokens": name, "score": one.score, "log_probability": one.log_probability}
                for name, one in outputs
            ],
            "nodes": [dataclasses.asdict(node) for node in self.tree.nodes],
        }

    def text(self, width: int) -> Iterator[RenderableType]:
        """The tree, and what came out."""
        yield terminal_tree(self.tree)
        rows = [
            (f"{one.score:.3f}", name)
            for name, one in zip(self.tree.names, self.tree.outputs, strict=True)
        ]
        yield table_text(("score", "output"), rows)


def _no_probabilities(subject: Subject) -> str | None:
    assert subject.trace is not None
    if "probabilities" in subject.trace:
        return None
    return "This model gives no probabilities; look at its flow, attention or drift instead."
