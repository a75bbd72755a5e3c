from dataclasses import replace

import pytest

from qkv_labs import compare
from qkv_labs import decoding as lab
from qkv_labs.decoding import Row

PAIRS = [("甲", "one two three four"), ("乙", "five six seven eight")]


def row(model: str, width: int, penalty: float, quality: float, gained: int, lost: int) -> Row:
    name = f"beam {width}" if width > 1 else "greedy"
    return Row(
        model, name, width, penalty, 0.0, quality, quality, -9 + width / 8, 0.0, 1.0, gained, lost
    )


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


def test_a_few_mended_sentences_are_noise() -> None:
    one = row("under-trained", 4, 0.0, 80, 10, 2)
    assert compare(lab.net_gain(one), ">", 0).outcome == "holds"
    assert compare(lab.net_gain(replace(one, gained=6, lost=3)), ">", 0).outcome == "undecided"
    assert compare(lab.net_gain(replace(one, gained=2, lost=10)), ">", 0).outcome == "refuted"
