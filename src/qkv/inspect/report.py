"""All that can be shown of a model: the views by name, which of them a model has, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.errors import UserError
from qkv.inspect.pages import page, paragraph, section
from qkv.inspect.panes import Pane, PassPane, Subject, Wish
from qkv.inspect.panes_of_attention import AttentionPane, RolloutPane
from qkv.inspect.panes_of_model import CurvesPane, EmbeddingsPane, PositionsPane
from qkv.inspect.panes_of_pass import (
    AttributionPane,
    BeamPane,
    DriftPane,
    FlowPane,
    LensPane,
    StepsPane,
)

VIEWS: dict[str, type[Pane]] = {
    "flow": FlowPane,
    "steps": StepsPane,
    "attention": AttentionPane,
    "lens": LensPane,
    "drift": DriftPane,
    "attribution": AttributionPane,
    "rollout": RolloutPane,
    "beam": BeamPane,
    "positions": PositionsPane,
    "embeddings": EmbeddingsPane,
    "curves": CurvesPane,
}


def needs_text(name: str) -> bool:
    """Whether a view looks at a pass, and so at a text."""
    return issubclass(VIEWS[name], PassPane)


def build_panes(names: Sequence[str], subject: Subject, wish: Wish) -> dict[str, Pane]:
    """The views that are asked for, each of which must be there."""
    panes = {}
    for name in names:
        if reason := VIEWS[name].lack(subject, wish):
            raise UserError(reason)
        panes[name] = VIEWS[name](subject, wish)
        panes[name].check()
    return panes


def applicable(names: Sequence[str], subject: Subject, wish: Wish) -> list[str]:
    """Those of the views that this model has."""
    able = []
    for name in names:
        part = subject.trace if needs_text(name) else subject.model
        there = part is not None or name == "curves"
        if there and VIEWS[name].lack(subject, wish) is None:
            able.append(name)
    return able


def tokens_of(subject: Subject) -> dict[str, list[str]]:
    """What was read, by side."""
    trace = subject.trace
    if trace is None:
        return {}
    sides = {"source": trace.reading.source, "target": trace.reading.target}
    return {name: trace.tokens(name) for name, side in sides.items() if side is not None}


def report_page(name: str, subject: Subject, panes: dict[str, Pane]) -> str:
    """A page that stands alone: what was read, and a section for each view."""
    read = [paragraph(f"{side}: {' '.join(tokens)}") for side, tokens in tokens_of(subject).items()]
    sections = [section(pane.title, paragraph(pane.about), pane.html()) for pane in panes.values()]
    return page(f"Inside {name}", [*read, *sections])


def report_numbers(name: str, subject: Subject, panes: dict[str, Pane]) -> dict[str, Any]:
    """The numbers of each view, and what was read."""
    numbers = {view: pane.numbers() for view, pane in panes.items()}
    return {"model": name, "tokens": tokens_of(subject), **numbers}
