from collections.abc import Sequence
from dataclasses import replace

import pytest

from qkv_labs import decoding as lab
from qkv_labs.decoding import LAB, Measured, Row

PAIRS = [("甲", "one two three four"), ("乙", "five six seven eight")]


def row(model: str, width: int, penalty: float, quality: float, gained: int, lost: int) -> Row:
    name = f"beam {width}" if width > 1 else "greedy"
    return Row(
        model, name, width, penalty, 0.0, quality, quality, -9 + width / 8, 0.0, 1.0, gained, lost
    )


def made_up(poor: Sequence[float], good: Sequence[float], gained: int, better: int = 0) -> Measured:
    rows = [
        row(model, width, penalty, quality, won if width > 1 else 0, 0)
        for model, curve, won in (("well trained", good, better), ("under-trained", poor, gained))
        for penalty in lab.PENALTIES
        for width, quality in zip(lab.WIDTHS, curve, strict=True)
    ]
    drawn = [
        Row(
            model, f"sampling, T = {heat}", 0, 0.0, heat, 80 - 20 * heat, 70, -9, 30 * heat, 1, 0, 0
        )
        for model in lab.MODELS
        for heat in lab.TEMPERATURES
    ]
    return Measured(rows + drawn, 100)


FLAT = [90.0] * 6


def test_variety_is_how_often_two_draws_differ() -> None:
    assert lab.variety(["a", "a", "a"]) == 0
    assert lab.variety(["a", "b", "c"]) == 1
    assert lab.variety(["a", "a", "b", "b"]) == pytest.approx(4 / 6)
    assert lab.variety(["a"]) == 0


def test_scores_are_counted_over_all_draws_and_mended_sentences_over_the_first() -> None:
    right, wrong = PAIRS[0][1], "five six"
    found = [[(right, -1.0), (right, -1.0)], [(wrong, -4.0), (PAIRS[1][1], -2.0)]]
    figures = lab.score(found, PAIRS, greedy=[False, True])
    assert figures["exact"] == 75 and figures["log_probability"] == -2
    assert figures["variety"] == 50 and figures["length"] == 14 / 16
    assert (figures["gained"], figures["lost"]) == (1, 1)
    same = lab.score(found, PAIRS, greedy=[True, False])
    assert (same["gained"], same["lost"]) == (0, 0)


def test_the_curse_is_what_the_widest_beam_lost_from_the_best() -> None:
    curve = lab.beams(made_up([80, 84, 85, 84, 83, 82], FLAT, 9), "under-trained", 0.0)
    best, fall = lab.curse(curve)
    assert (best.width, fall) == (4, 3)


def test_a_few_mended_sentences_are_noise() -> None:
    one = row("under-trained", 4, 0.0, 80, 10, 2)
    assert lab.beats_greedy(one)
    assert not lab.beats_greedy(replace(one, gained=6, lost=3))
    assert not lab.beats_greedy(replace(one, gained=2, lost=10))


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        (made_up([80, 82, 84, 85, 86, 87], [90, 91, 92, 93, 94, 95], 20, better=20), "holds"),
        (made_up([80, 82, 84, 83, 81, 79], FLAT, 20), "holds when"),
        (made_up([80, 82, 84, 85, 86, 87], FLAT, 20), "holds when"),
        (made_up([80, 80, 80, 80, 80, 79], FLAT, 3), "does not hold"),
    ],
)
def test_the_verdict_follows_the_figures(measured: Measured, outcome: str) -> None:
    assert LAB.judge(measured).outcome == outcome


def test_the_verdict_says_which_model_is_helped() -> None:
    falling = [80, 82, 84, 83, 81, 79]
    unsure, sure, both = (
        LAB.judge(made_up(falling, FLAT, gained, better)).because
        for gained, better in ((20, 0), (0, 20), (20, 20))
    )
    assert unsure.en.startswith("Holds when the model is unsure. Holds up to 4 beams")
    assert sure.en.startswith("Holds when the model is well trained. ")
    assert both.en.startswith("Holds up to 4 beams") and "束宽不超过 4" in both.zh


def test_the_verdict_says_whether_wide_beams_do_harm() -> None:
    harmed = LAB.judge(made_up([80, 82, 84, 83, 81, 79], FLAT, 20)).because.en
    level = LAB.judge(made_up([80, 82, 84, 84, 84, 83.9], FLAT, 20)).because.en
    assert "make it worse" in harmed and "no better" in level
