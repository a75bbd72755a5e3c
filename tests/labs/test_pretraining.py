"""Lab 20: the made-up language, what pre-training may know of it, fair arms, and the verdict."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator

from qkv_labs import pretraining as lab
from qkv_labs.lab import Settings

TINY = lab.Sizes(labels=(4, 8), pretraining_steps=3, steps=2, n_plain=200, d_model=8)


def test_labels_follow_from_the_words() -> None:
    text, praise = lab.sentences(2000, Generator().manual_seed(0), 0.5)
    assert text.shape == (2000, lab.LENGTH)
    assert int(text.max()) < lab.VOCABULARY
    assert set(text[:, 0].tolist()) == {lab.CLS}
    turned = text[:, -2] - lab.TURNS >= lab.N_TURNS // 2
    good = text[:, -1] - lab.ADJECTIVES < lab.N_ADJECTIVES // 2
    assert torch.equal(praise.bool(), good != turned)
    assert 0.1 < turned.double().mean() < 0.2
    told = text[:, lab.VERB] >= lab.OPINIONS
    assert 0.45 < told.double().mean() < 0.55
    likes = text[told, lab.VERB] - lab.OPINIONS < lab.N_OPINIONS // 2
    assert torch.equal(likes, praise[told].bool())  # an opinion verb gives the opinion away


def test_labelled_sentences_have_no_verb_that_tells() -> None:
    lesson = lab.Lesson.drawn(50, Generator().manual_seed(1))
    for text, _ in (lesson.learn, lesson.choose, lesson.test):
        verbs = text[:, lab.VERB]
        assert bool(((verbs >= lab.NEUTRAL) & (verbs < lab.OPINIONS)).all())
    assert len(lesson.learn[0]) == len(lesson.learn[1]) == 50
    learnt = {tuple(row) for row in lesson.learn[0].tolist()}
    asked = {tuple(row) for part in (lesson.choose, lesson.test) for row in part[0].tolist()}
    assert not learnt & asked


def test_cut_text_has_the_same_words_and_no_link() -> None:
    text, praise = lab.sentences(4000, Generator().manual_seed(2), 1.0)
    cut = lab.without_meaning(text, Generator().manual_seed(3))
    others = [place for place in range(lab.LENGTH) if place != lab.VERB]
    assert torch.equal(cut[:, others], text[:, others])
    verbs, dealt = text[:, lab.VERB], cut[:, lab.VERB]
    assert torch.equal(verbs.sort().values, dealt.sort().values)
    likes = dealt - lab.OPINIONS < lab.N_OPINIONS // 2
    agree = (likes == praise.bool()).double().mean()
    assert 0.45 < agree < 0.55
    neutral, _ = lab.sentences(100, Generator().manual_seed(4), 0.0)
    assert torch.equal(lab.without_meaning(neutral, Generator()), neutral)


def test_hidden_words_are_replaced_and_the_first_token_never_is() -> None:
    text, _ = lab.sentences(1000, Generator().manual_seed(0), 0.5)
    seen, hidden = lab.hide(text, Generator().manual_seed(0))
    assert torch.equal(seen[~hidden], text[~hidden])
    assert set(seen[hidden].tolist()) == {lab.MASK}
    assert not hidden[:, 0].any()
    assert 0.35 < hidden[:, 1:].double().mean() < 0.45


def test_pretraining_learns_what_the_text_tells_and_no_more() -> None:
    """With as few words as a test has time for: the verb follows from the adjective."""
    random = Generator().manual_seed(0)
    text, _ = lab.sentences(6000, random, 1.0)
    kept = (text[:, -1] - lab.ADJECTIVES) % (lab.N_ADJECTIVES // 2) < 1
    few = text[kept & (text[:, -2] < lab.TURNS + lab.N_TURNS // 2)]
    ignorant = math.log(lab.N_OPINIONS)
    assert lab.pretrain(lab.build(32), few, 400, random) < 0.8 * ignorant
    assert (
        lab.pretrain(lab.build(32), lab.without_meaning(few, random), 400, random) > 0.95 * ignorant
    )


def test_arms_start_alike_and_are_as_long_as_they_say() -> None:
    found, _ = lab.starts(TINY, 0)
    again, _ = lab.starts(TINY, 0)
    assert found[lab.SCRATCH] is found[lab.LONG]
    for name in lab.ARMS:
        assert all(torch.equal(found[name][key], again[name][key]) for key in found[name])
    name = next(iter(found[lab.SCRATCH]))
    assert not torch.equal(found[lab.PRETRAINED][name], found[lab.SCRATCH][name])
    steps: list[str] = []
    m = lab.measured_with(TINY, Settings(tell=steps.append))
    assert [m.of(name, 4).steps for name in (lab.SCRATCH, lab.LONG, lab.PRETRAINED, lab.CUT)] == [
        2,
        5,
        5,
        5,
    ]
    assert all(len(arm.accuracies) == 3 for arm in m.arms)
    assert m.labels == [4, 8]
    assert len(steps) == 3 + 2 * len(lab.ARMS)  # three seeds, two numbers of labels
    assert m == lab.measured_with(TINY, Settings())


@pytest.mark.parametrize("better", lab.RATES)
@pytest.mark.parametrize("name", lab.ARMS)
def test_the_rate_is_chosen_by_other_sentences_than_the_test_s(
    name: str, better: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, int]] = []

    def outcome_of(
        weights: object, n_labels: int, steps: int, rate: float, seed: int
    ) -> tuple[float, float]:
        asked.append((n_labels, steps, seed))
        return (90.0, 20.0) if rate == better else (10.0, 80.0)

    monkeypatch.setattr(lab, "outcome_of", outcome_of)
    arms = lab.run_arm(name, [{}, {}], TINY, Settings(seed=7))
    assert [(arm.labels, arm.rate, arm.accuracies) for arm in arms] == [
        (4, better, [20.0, 20.0]),
        (8, better, [20.0, 20.0]),
    ]
    steps = 5 if name == lab.LONG else 2  # of fine-tuning; the others' pre-training was before
    assert asked[2:] == [(labels, steps, seed) for labels in (4, 8) for seed in (7, 8)]
