"""What the lab of sampling rules draws and counts."""

from __future__ import annotations

from random import Random

import pytest

from qkv_labs import sampling as lab


def test_sentences_of_the_language_are_right_and_others_are_not() -> None:
    drawn = lab.sentences(200, Random(0))
    assert all(map(lab.right, drawn))
    subject, verb, thing = drawn[0]
    wrong = next(x for x in lab.OBJECTS if x not in lab.grammar()[verb])
    for words in ((subject, verb, wrong), (verb, subject, thing), (subject, verb), ()):
        assert not lab.right(words)


def test_verbs_take_few_objects_or_many() -> None:
    assert sorted({len(objects) for objects in lab.grammar().values()}) == [2, 4, 8, 16]


def test_scores_count_right_different_and_reached_sentences() -> None:
    first, second = lab.sentences(2, Random(1))
    assert first != second
    right, different, reached = lab.scores([first, first, second, (0,)])
    assert (right, different) == (75.0, 75.0)
    assert reached == pytest.approx(100 * 2 / (lab.N_SUBJECTS * sum(lab.TAKEN)))


def test_greedy_repeats_itself_and_drawing_does_not() -> None:
    model = lab.learn(0, steps=20)
    greedy = lab.draw_sentences(model, lab.RULES[lab.GREEDY], 20)
    drawn = lab.draw_sentences(model, lab.RULES["T = 1"], 20)
    assert len(set(greedy)) == 1 < len(set(drawn))
    assert len({words[0] for words in lab.draw_sentences(model, {"top_k": 2}, 40)}) <= 2


def test_rules_are_compared_among_those_that_reach_enough() -> None:
    rows = [
        lab.Row("top-k 2", [99.0], [5.0], [10.0]),
        lab.Row("top-k 8", [90.0], [30.0], [60.0]),
        lab.Row("top-k 32", [70.0], [50.0], [65.0]),
    ]
    m = lab.Measured(100, rows, [36.0], [75.0])
    assert lab.best_reaching(m, "top-k", 50).rule == "top-k 8"
    assert lab.best_reaching(m, "top-k", 5).rule == "top-k 2"
