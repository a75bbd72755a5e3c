"""What the lab of masking rates and pairs measures."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from qkv.config import MaskConfig
from qkv.data import frame
from qkv.labs.masking import (
    LAB,
    PLAIN_MASKS,
    RATES,
    STARTS,
    Measured,
    Sizes,
    Text,
    Work,
    drawn_pairs,
    filled,
    filling,
    fresh,
    gain,
    masked_batch,
    pairing,
    probed,
    tasks_of,
    texts_of,
    tuned,
)

TINY = Sizes(each=60, steps=2, tune_steps=2, rows=8, labelled=60, seeds=1, width=16)


@pytest.fixture(scope="module")
def work() -> Work:
    return texts_of(TINY)


def test_no_sentence_that_is_judged_was_learnt_from(work: Work) -> None:
    learnt = {tuple(text.ids) for text in work.train}
    assert learnt.isdisjoint(tuple(text.ids) for text in work.held_out)
    assert len({text.pattern for text in work.train}) == 6


@pytest.mark.parametrize("rate", RATES)
def test_each_rate_hides_its_share_and_keeps_what_stood_there(work: Work, rate: float) -> None:
    framed = [frame(text.ids, None, work.special) for text in work.train]
    masker = work.masker(MaskConfig(share=rate, random=0.0, kept=0.0))
    batch = masked_batch(framed, masker, np.random.default_rng(0), work.special.pad)
    tokens = batch.target.tokens.flatten()
    assert bool((tokens[batch.places] == work.tokenizer.mask_id).all())
    restored = tokens.clone()
    assert batch.places is not None
    restored[batch.places] = batch.labels
    rows = restored.view_as(batch.target.tokens)
    for row, one in zip(rows.tolist(), framed, strict=True):
        assert row[: len(one.tokens)] == one.tokens
    assert batch.n_labels == round(rate * sum(len(text.ids) for text in work.train))


@pytest.mark.parametrize("about", ["subject", "thing"])
def test_half_the_pairs_agree_and_half_do_not(work: Work, about: str) -> None:
    pairs = drawn_pairs(work.train, about, 100, Random(0))
    assert sum(label for *_, label in pairs) == 50
    for first, second, label in pairs:
        assert first is not second
        assert (getattr(first, about) == getattr(second, about)) == bool(label)


def test_both_kinds_of_pairing_begin_alike_and_only_one_learns_from_pairs(work: Work) -> None:
    start = fresh(work.config, 0)
    plain, paired = (pairing(work, with_pairs, 0) for with_pairs in (False, True))
    assert start.pair_head is not None and plain.pair_head is not None and paired.pair_head
    before, without, after = (
        model.pair_head.projection.weight  # type: ignore[union-attr]
        for model in (start, plain, paired)
    )
    assert torch.equal(before, without)
    assert not torch.equal(before, after)


def test_an_encoder_learns_to_fill(work: Work) -> None:
    longer = replace(work, sizes=replace(TINY, steps=60, rows=32))
    assert filled(filling(longer, 0.3, 0), work) > filled(fresh(work.config, 0), work) + 5


def test_filling_is_the_share_of_hidden_tokens_found(work: Work) -> None:
    model = fresh(work.config, 0)
    head: Any = model.head
    with torch.no_grad():  # it always says one token
        head.projection.bias.zero_()
        head.projection.bias[10] = 1e6
    framed = [frame(text.ids, None, work.special) for text in work.held_out]
    batch = masked_batch(
        framed, work.masker(PLAIN_MASKS), np.random.default_rng(0), work.special.pad
    )
    assert filled(model, work) == pytest.approx(100 * float((batch.labels == 10).float().mean()))


def test_a_probe_reads_what_vectors_tell_and_nothing_else(work: Work) -> None:
    texts = [Text([270 + n % 5], "", "", n % 5) for n in range(100)]
    told = replace(work, train=texts, held_out=texts)
    assert probed(fresh(work.config, 0), told) == 100.0
    random = Random(0)
    blind = [replace(text, pattern=random.randrange(5)) for text in texts]
    untold = replace(work, train=blind[:50], held_out=blind[50:])
    assert probed(fresh(work.config, 0), untold) < 50


def test_tuning_keeps_the_weights_that_it_starts_from(work: Work) -> None:
    pair, single = tasks_of(work)
    assert (pair.n_labels, single.n_labels) == (2, 6)
    assert len(pair.train[0]) == len(single.train[0]) == 60
    still = replace(work, sizes=replace(TINY, tune_steps=0))
    start = fresh(work.config, 1)
    same, other = (tuned(model, single, still, 0) for model in (start, fresh(work.config, 2)))
    assert same == tuned(start, single, still, 0)
    with torch.no_grad():
        start.embedding.table.weight.zero_()  # type: ignore[operator, union-attr]
    assert tuned(start, single, still, 0) != same or other != same


def test_tuning_learns(work: Work) -> None:
    _, single = tasks_of(work)
    easy = replace(single, held_out=single.train)
    longer = replace(work, sizes=replace(TINY, tune_steps=80))
    assert tuned(fresh(work.config, 0), easy, longer, 0) > 50


def made(fills: list[float], pair: float) -> Measured:
    def three(value: float) -> list[float]:
        return [value - 0.3, value, value + 0.3]

    return Measured(
        [three(fill) for fill in fills], [three(60)] * 5,
        [three(55), three(70), three(pair)], [three(40), three(80), three(80)], [50.0, 2.2],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("measured", "outcome", "said"),
    [
        (made([40, 50, 49, 45, 30], 80), "holds", "hiding 15%"),
        (made([40, 50, 50.4, 45, 30], 80), "holds", "hiding 30%"),
        (made([40, 50, 60, 45, 30], 80), "holds when", "of the pair objective, not of the rate"),
        (made([40, 50, 49, 45, 30], 70), "holds when", "of the rate, not of the pair objective"),
        (made([40, 50, 60, 45, 30], 60), "does not hold", "-10.0 points"),
    ],
)
def test_the_verdict_follows_from_the_figures(measured: Measured, outcome: str, said: str) -> None:
    verdict = LAB.judge(measured)
    assert verdict.outcome == outcome
    assert said in verdict.because.en


def test_a_pair_task_that_nobody_learnt_judges_nothing() -> None:
    measured = replace(made([40, 50, 60, 45, 30], 53), chance=[70.0, 2.2])
    assert "not judged" in LAB.judge(measured).because.en


def test_a_gain_must_be_beyond_chance() -> None:
    assert gain([10, 20, 30], [9, 22, 20]) == (3.0, False)
    assert gain([10, 20, 30], [5, 15, 25]) == (5.0, True)


def test_tables_and_figure_show_what_was_measured() -> None:
    measured = made([40, 50, 60, 45, 30], 80)
    rates, starts = LAB.tables(measured)
    assert rates.rows[1] == ("15%", "50.0 ± 0.3", "60.0 ± 0.3")
    assert starts.rows[2][:2] == (STARTS[2], "80.0 ± 0.3")
    left, right = LAB.draw(measured).axes
    assert np.asarray(left.lines[0].get_ydata()).tolist() == [40, 50, 60, 45, 30]
    bars: Any = right.patches
    assert [bar.get_height() for bar in bars] == [55, 40, 70, 80, 80, 80]
