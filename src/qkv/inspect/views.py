"""The views of `qkv inspect` by name, and pages and numbers of several of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qkv.errors import UserError
from qkv.inspect.answers import (
    attention,
    attribution,
    beam_tree,
    compare,
    contributions,
    curves,
    drift,
    embeddings,
    flow,
    hand,
    lens,
    mask,
    neurons,
    positions,
    roles,
    rollout,
    shift,
    steps,
    word,
)
from qkv.inspect.answers.answer import Answer, Question, View
from qkv.inspect.draw.language import localized
from qkv.inspect.draw.page import page, piece, texts

VIEWS: dict[str, View] = {
    "flow": flow.VIEW,
    "steps": steps.VIEW,
    "attention": attention.VIEW,
    "hand": hand.VIEW,
    "mask": mask.VIEW,
    "shift": shift.VIEW,
    "lens": lens.VIEW,
    "drift": drift.VIEW,
    "contributions": contributions.VIEW,
    "neurons": neurons.VIEW,
    "roles": roles.VIEW,
    "attribution": attribution.VIEW,
    "rollout": rollout.VIEW,
    "beam": beam_tree.VIEW,
    "word": word.VIEW,
    "compare": compare.VIEW,
    "positions": positions.VIEW,
    "embeddings": embeddings.VIEW,
    "curves": curves.VIEW,
}


def check(names: Iterable[str], question: Question) -> None:
    """Raise an error for a view that this model does not have."""
    for name in names:
        if reason := VIEWS[name].lack(question):
            raise UserError(reason)


def applicable(names: Iterable[str], question: Question) -> list[str]:
    """Select the views that this model has."""
    able = []
    for name in names:
        part = question.trace if VIEWS[name].needs_text else question.model
        there = part is not None or name == "curves"
        if there and _suits(VIEWS[name], question):
            able.append(name)
    return able


def _suits(view: View, question: Question) -> bool:
    """Whether a view can answer; a token that only the other side has is no reason to stop."""
    try:
        return view.lack(question) is None
    except UserError:
        if question.token or question.words:
            return False
        raise


def report_page(model: str, question: Question, answers: Mapping[str, Answer]) -> str:
    """Build a page with the tokens that were read and a section per view."""
    sections = [
        piece("section", localized(VIEWS[name].title), localized(VIEWS[name].about), answer.html())
        for name, answer in answers.items()
    ]
    tokens = {localized(side): names for side, names in question.tokens.items()}
    return page(localized("Inside {model}", model=model), [texts(tokens), *sections])


def report_numbers(model: str, question: Question, answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Collect the tokens that were read and the numbers of each view."""
    numbers = {name: answer.numbers() for name, answer in answers.items()}
    return {"model": model, "tokens": question.tokens, **numbers}
