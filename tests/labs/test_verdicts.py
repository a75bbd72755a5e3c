"""Verdicts: what intervals decide, by brute force; and that each lab's follow its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv_labs import Comparison, Interval, SubClaim, Words, compare, find
from qkv_labs.texts import works
from tests.labs.results import measured, outcomes

GRID = [index / 4 for index in range(-8, 9)]  # exact in binary, so that no rounding decides


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    low, middle, high = sorted(draw(st.lists(st.sampled_from(GRID), min_size=3, max_size=3)))
    return Interval(middle, low, high)


def true_of(relation: str, left: float, right: float, margin: float) -> bool:
    if relation == ">":
        return left > right + margin
    if relation == "<":
        return left < right - margin
    return abs(left - right) <= margin


@given(intervals(), st.sampled_from("><≈"), intervals(), st.sampled_from([-1.0, 0.0, 0.5, 1.0]))
def test_a_comparison_holds_for_all_values_is_refuted_by_all_or_is_undecided(
    left: Interval, relation: Any, right: Interval, margin: float
) -> None:
    margin = abs(margin) if relation == "≈" else margin
    values = [[x for x in GRID if side.low <= x <= side.high] for side in (left, right)]
    # A wide ≈ may be false at both ends and true only between them: then some pairs differ
    truths = {true_of(relation, a, b, margin) for a, b in product(*values)}
    wanted = "undecided" if len(truths) == 2 else "holds" if truths == {True} else "refuted"
    assert Comparison(left, relation, right, margin).outcome == wanted


def claim(*outcomes_: str) -> SubClaim:
    known = {
        "holds": compare(1, ">", 0),
        "refuted": compare(0, ">", 1),
        "undecided": compare(Interval(0, -1, 1), ">", 0),
    }
    return SubClaim(Words("a", "甲"), [known[outcome] for outcome in outcomes_])


@pytest.mark.parametrize(
    ("parts", "outcome", "mark"),
    [
        (("holds",), "holds", "✓"),
        (("holds", "holds"), "holds", "✓"),
        (("holds", "undecided"), "undecided", "?"),
        (("undecided", "refuted", "holds"), "refuted", "✗"),
        ((), "undecided", "?"),  # nothing was measured
    ],
)
def test_a_sub_claim_holds_if_all_its_comparisons_do(
    parts: tuple[str, ...], outcome: str, mark: str
) -> None:
    assert claim(*parts).outcome == outcome
    assert claim(*parts).mark == mark


def test_intervals_of_samples_and_of_shares() -> None:
    mean = Interval.of([1.0, 2.0, 3.0], 10)
    assert (mean.middle, mean.low, mean.high) == pytest.approx(
        (20, 20 - 20 / 3**0.5, 20 + 20 / 3**0.5)
    )
    assert Interval.of([4.0]) == Interval.exact(4.0)
    assert Interval.percent([0.9, 1.0], 100).high == 100
    assert Interval.percent([0.0, 10.0]).low == 0
    share = Interval.share(50, 100)  # Wilson's interval of 50 of 100
    assert (share.low, share.high) == pytest.approx((40.38, 59.62), abs=0.01)
    none = Interval.share(0, 40)
    assert none.low == pytest.approx(0)
    assert none.high == pytest.approx(8.76, abs=0.01)


@pytest.mark.parametrize(
    ("comparison", "shown"),
    [
        (compare(2, ">", 1), "2.0 > 1.0"),
        (compare(1, ">", 2), "1.0 < 2.0"),
        (compare(2, "<", 2), "2.0 = 2.0"),
        (compare(Interval(2, 1, 3), ">", 2), "2.0 [1.0, 3.0] ? 2.0"),
        (compare(2, ">", 1, ("new", "old"), margin=3, form=".0f"), "new 2 < old 1 + 3"),
        (compare(2, "<", 1, margin=-3), "2.0 < 1.0 + 3"),
        (compare(1.01, "≈", 1, margin=0.05, form=".2f"), "1.01 ≈ 1.00 ± 0.05"),
        (compare(2, "≈", 1, margin=0.5), "2.0 > 1.0 ± 0.5"),
    ],
)
def test_a_comparison_shows_what_was_observed(comparison: Comparison, shown: str) -> None:
    assert comparison.show() == shown


def test_sources_name_author_year_and_title() -> None:
    for source in works().values():
        before, _, title = source.partition(", “")
        assert before[-4:].isdecimal() and 1980 < int(before[-4:]) < 2027
        assert title.endswith("”") and len(title) > 10


def changed(m: Any, field: str, changes: dict[str, Any], wanted: dict[str, Any]) -> Any:
    """A measurement with some attributes of those items of a list that match."""
    items = getattr(m, field)
    match = [all(getattr(item, key) == value for key, value in wanted.items()) for item in items]
    assert any(match)
    new = [replace(one, **changes) if fits else one for one, fits in zip(items, match, strict=True)]
    return replace(m, **{field: new})


# Lab, sub-claim, outcome, and what is changed: a list's items, some attributes, of which items
CHANGES: list[tuple[str, str, str, str, dict[str, Any], dict[str, Any]]] = [
    ("scale", "trains", "refuted", "runs", {"test": [0.0, 0.0]}, {"arm": "with 1/√d_k"}),
    ("saturation", "entropy", "holds", "gaps", {"entropy_wrong": 0.0}, {}),
    (
        *("score_functions", "better", "holds", "qualities"),
        *({"accuracy": [0.1, 0.1]}, {"arm": "additive"}),
    ),
    ("tied", "content", "holds", "arms", {"accuracy": [0.1, 0.2]}, {"scheme": "K=V"}),
    ("order", "decoder", "holds", "trained", {"accuracies": [0.5, 0.5]}, {"family": "decoder"}),
    ("order", "same", "refuted", "changes", {"moved": 1e-3}, {"positions": "none"}),
    ("residual", "new", "refuted", "trained", {"after": [1.0, 0.9]}, {}),
    (
        *("norm", "six", "holds", "trained"),
        {"accuracies": {"0.01": [0.1, 0.1], "0.1": [0.0]}},
        {"kind": "no norm", "n_layers": 6},
    ),
    ("norm", "free", "refuted", "changes", {"mates": 1e-2}, {}),
    ("heads", "several", "refuted", "lookups", {"accuracies": [50.0, 50.0]}, {}),
    ("masks", "hides", "refuted", "leaks", {"hidden": 1.0}, {}),
    ("serial", "same", "refuted", "counted", {"tokens": [0]}, {"way": "cache"}),
    ("recurrent", "waits", "refuted", "arms", {"chain": [1]}, {"name": "LSTM"}),
    ("bidirectional", "left", "refuted", "probes", {"accuracies": [100.0]}, {"model": "decoder"}),
    ("embeddings", "together", "refuted", "arms", {"nearest": [5.0, 5.0]}, {}),
    (
        *("families", "alone", "holds", "arms"),
        *({"exact": [10.0, 11.0, 10.0, 11.0]}, {"name": "decoder-only"}),
    ),
    ("decoding", "mends", "refuted", "rows", {"gained": 0, "lost": 9}, {}),
    ("pretraining", "few", "holds", "arms", {"accuracies": [99.0, 99.0]}, {"name": "pre-trained"}),
    ("few_shot", "order", "holds", "arms", {"accuracies": [80.0, 80.0]}, {}),
    ("sampling", "greedy", "refuted", "rows", {"right": [10.0, 10.0]}, {}),
    ("query_key", "control", "refuted", "courses", {"attention": [0.9, 0.9]}, {"rule": False}),
    ("feed_forward", "facts", "refuted", "arms", {"facts": [50.0, 50.0]}, {}),
    ("relations", "own", "refuted", "relations", {"layer": 0, "head": 0}, {}),
]
OTHERS: list[tuple[str, str, str, Callable[[Any], dict[str, Any]]]] = [  # what is not in a list
    ("scale", "grows", "refuted", lambda m: {"exponents": {"normal": 0.5}}),
    ("saturation", "decays", "refuted", lambda m: {"rate": -0.5}),
    ("positions", "shift", "refuted", lambda m: {"closed_form": 0.1}),
    ("teacher_forcing", "once", "refuted", lambda m: {"difference": 0.1}),
    (
        *("cost", "orders", "refuted"),
        lambda m: {
            "flops_by_length": dict.fromkeys(m.flops_by_length, m.flops_by_length["recurrent"])
        },
    ),
    (
        *("masking", "rate", "holds"),
        lambda m: {"filled": [[5.0, 5.0], [90.0, 90.0], *[[5.0, 5.0]] * 3]},
    ),
    (
        *("instruction", "kept", "holds"),
        lambda m: {"perplexity": {key: [1.5, 1.5] for key in m.perplexity}},
    ),
]


@pytest.mark.parametrize(
    ("name", "sub_claim", "outcome", "change"),
    [
        *(
            (*case, partial(changed, field=field, changes=new, wanted=wanted))
            for *case, field, new, wanted in CHANGES
        ),
        *((*case, lambda m, new=new: replace(m, **new(m))) for *case, new in OTHERS),
    ],
)
def test_other_figures_give_another_outcome(
    name: str, sub_claim: str, outcome: str, change: Any
) -> None:
    m = measured(find(name))
    assert outcomes(name, m)[sub_claim] != outcome
    assert outcomes(name, change(m))[sub_claim] == outcome
