from collections.abc import Sequence
from dataclasses import asdict, replace
from json import dumps
from types import SimpleNamespace
from typing import Any

import pytest

from qkv.inspect.draw import styled
from qkv_labs import decoding as lab
from qkv_labs.decoding import LAB, Measured, Row
from qkv_labs.lab import Settings

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


def test_every_model_is_decoded_in_every_way_with_the_settings_it_is_named_after() -> None:
    asked: list[dict[str, Any]] = []

    class Translator:
        def n_best(self, texts: list[str], **settings: Any) -> list[list[Any]]:
            asked.append(settings)
            one = SimpleNamespace(text="one two three four", log_probability=-1.0)
            return [[one] * settings.get("n_best", 1) for _ in texts]

    subject: Any = Translator()
    rows = lab.measure_model("well trained", subject, PAIRS, seed=7)
    assert len(rows) == 2 + 2 * 5 + 8 and len(asked) == 1 + 2 * 5 + 8
    assert {(one["beams"], one["length_penalty"]) for one in asked if one.get("beams", 1) > 1} == {
        (width, penalty) for width in lab.WIDTHS[1:] for penalty in lab.PENALTIES
    }
    sampled = [one for one in asked if one.get("sample")]
    assert all(one["n_best"] == lab.DRAWS and one["seed"] == 7 for one in sampled)
    assert [one.get("temperature") for one in sampled[:6]] == list(lab.TEMPERATURES)
    assert (sampled[6]["top_k"], sampled[7]["top_p"]) == (5, 0.9)
    assert all(one.exact == 50 for one in rows)


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


def test_tables_and_figure_hold_the_figures() -> None:
    measured = made_up([80, 82, 84, 83, 81, 79], FLAT, 20)
    dumps(asdict(measured))
    good, poor = LAB.tables(measured)
    assert good.rows[0][:4] == ("greedy", "", "90.0", "90.0")
    assert poor.rows[1] == ("beam 2", "log P", "82.0", "82.0", "-8.75", "0", "1.000", "+20 −0")
    assert len(poor.rows) == 1 + 10 + 6
    with styled():
        left, middle, right = LAB.draw(measured).axes
    assert list(left.lines[1].get_ydata()) == [(width - 1) / 8 for width in lab.WIDTHS]
    assert list(middle.lines[2].get_ydata()) == [80, 82, 84, 83, 81, 79]
    assert list(right.lines[0].get_xdata()) == [30 * heat for heat in lab.TEMPERATURES]


def test_both_models_decode_the_same_held_out_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    corpus = SimpleNamespace(test=[*PAIRS] * 150)
    monkeypatch.setattr(lab, "demo_corpus", lambda: corpus)
    monkeypatch.setattr(lab, "translator", lambda tell, *changes: changes)
    monkeypatch.setattr(lab, "measure_model", lambda *given: asked.append(given) or [])
    assert LAB.measure(Settings(seed=3)).n_sentences == 200
    assert [(name, subject, seed) for name, subject, _, seed in asked] == [
        ("well trained", (), 3),
        ("under-trained", ("train.steps=300",), 3),
    ]
    assert asked[0][2] == asked[1][2] == corpus.test[:200]
