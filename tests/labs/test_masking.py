"""What the lab of masking rates and pairs measures."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from qkv.model import Encoder
from qkv_labs import masking as lab
from qkv_labs.masking import pairs as tasks
from qkv_labs.masking.documents import IDS, SPECIAL, WORDS
from qkv_labs.masking.rows import small_encoder

TINY = lab.Sizes(each=60, steps=2, rows=8, labelled=240, width=16)
SMALL = {"steps": 2, "rows": 8, "tune_steps": 2, "width": 16}
FEW = tasks.PairSizes(documents=200, pair_labels=60, single_labels=40, judged=100, **SMALL)


@pytest.fixture(scope="module")
def work() -> lab.Work:
    return lab.texts_of(TINY)


def fresh(work: lab.Work) -> Encoder:
    return small_encoder(work.vocab_size, TINY.width, work.special, 0)


@pytest.fixture(scope="module")
def pages() -> tasks.Pages:
    return tasks.pages_of(FEW)


def test_no_sentence_that_is_judged_was_learnt_from(work: lab.Work) -> None:
    learnt = {tuple(text.ids) for text in work.train}
    assert learnt.isdisjoint(tuple(text.ids) for text in work.held_out)
    assert len({text.pattern for text in work.train}) == 6


@pytest.mark.parametrize("rate", lab.RATES)
def test_each_rate_hides_its_share_and_keeps_what_stood_there(work: lab.Work, rate: float) -> None:
    rows = work.rows(work.train)
    seen, hidden = work.hide(rows, rate, np.random.default_rng(0), drawn=0.0, kept=0.0)
    assert bool((seen.tokens[hidden] == work.special.mask).all())
    assert torch.equal(seen.tokens[~hidden], rows.tokens[~hidden])
    assert int(hidden.sum()) == round(rate * sum(len(text.ids) for text in work.train))
    for row, text in zip(rows.tokens.tolist(), work.train, strict=True):
        framed = [work.special.bos, *text.ids, work.special.eos]
        assert row[: len(framed)] == framed and set(row[len(framed) :]) <= {work.special.pad}
    seen, hidden = work.hide(rows, rate, np.random.default_rng(0))
    masked = (seen.tokens[hidden] == work.special.mask).float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.15)


def test_an_encoder_learns_to_fill(work: lab.Work) -> None:
    longer = replace(work, sizes=replace(TINY, steps=60, rows=32))
    assert lab.filled(lab.filling(longer, 0.3, 0), work) > lab.filled(fresh(work), work) + 5


def test_filling_is_the_share_of_hidden_tokens_found(work: lab.Work) -> None:
    model = fresh(work)
    head: Any = model.head
    with torch.no_grad():  # it always says one token
        head.projection.bias.zero_()
        head.projection.bias[10] = 1e6
    rows = work.rows(work.held_out)
    _, hidden = work.hide(rows, 0.15, np.random.default_rng(0), drawn=0.0, kept=0.0)
    share = float((rows.tokens[hidden] == 10).float().mean())
    assert lab.filled(model, work) == pytest.approx(100 * share)


def test_a_probe_reads_what_vectors_tell_and_nothing_else(work: lab.Work) -> None:
    texts = [lab.Text([270 + n % 5], n % 5) for n in range(100)]
    told = replace(work, train=texts, held_out=texts)
    assert lab.probed(fresh(work), told) == 100.0
    random = Random(0)
    blind = [replace(text, pattern=random.randrange(5)) for text in texts]
    untold = replace(work, train=blind[:50], held_out=blind[50:])
    assert lab.probed(fresh(work), untold) < 50


def test_a_document_keeps_its_person_its_topic_and_its_mood(pages: tasks.Pages) -> None:
    assert len(IDS) == len(WORDS)  # no word is in two classes
    seen = {line.words for document in pages.train for line in document}
    for document in pages.train + pages.held_out:
        assert len({(line.person, line.topic, line.mood) for line in document}) == 1
    for document in pages.held_out:
        assert seen.isdisjoint(line.words for line in document)
    assert len(pages.held_out) > 20


def test_half_the_next_sentences_are_neighbours(pages: tasks.Pages) -> None:
    neighbours = {(id(a), id(b)) for document in pages.train for a, b in pairwise(document)}
    pairs = tasks.next_pairs(pages.train, 100, Random(0))
    assert sum(label for *_, label in pairs) == 50
    for first, second, label in pairs:
        assert ((id(first), id(second)) in neighbours) == bool(label)


@pytest.mark.parametrize(("asked", "kept"), [("person", ["topic"]), ("mood", ["topic", "person"])])
def test_half_the_asked_pairs_agree_and_all_keep_the_topic(
    pages: tasks.Pages, asked: str, kept: list[str]
) -> None:
    pairs = tasks.asked_pairs(pages.held_out, asked, kept, 60, Random(0))
    assert sum(label for *_, label in pairs) == 30
    for first, second, label in pairs:
        assert first is not second
        assert (getattr(first, asked) == getattr(second, asked)) == bool(label)
        assert all(getattr(first, name) == getattr(second, name) for name in kept)


def test_both_starts_begin_alike_and_only_one_learns_from_pairs(pages: tasks.Pages) -> None:
    start = pages.build(0)
    plain, both = (tasks.paired(pages, with_pairs, 0) for with_pairs in (False, True))
    before, without, after = (
        model.pair_head.projection.weight  # type: ignore[union-attr]
        for model in (start, plain, both)
    )
    assert torch.equal(before, without)
    assert not torch.equal(before, after)


def test_who_compares_person_and_topic_tells_most_neighbours(pages: tasks.Pages) -> None:
    pairs = tasks.next_pairs(pages.held_out, 200, Random(0))
    same = [(a.person, a.topic) == (b.person, b.topic) for a, b, _ in pairs]
    right = [one == bool(label) for one, (*_, label) in zip(same, pairs, strict=True)]
    assert np.mean(right) > 0.95


def test_what_is_told_is_the_share_of_right_answers(pages: tasks.Pages) -> None:
    model: Any = pages.build(0)
    with torch.no_grad():  # it calls everything a neighbour
        model.pair_head.projection.bias[1] = 1e6
    assert tasks.told(model, pages) == 50.0


def test_labels_differ_by_seed_and_what_is_judged_does_not(pages: tasks.Pages) -> None:
    first, second = tasks.tasks_of(pages, 0), tasks.tasks_of(pages, 5)
    assert [task.n_labels for task in first] == [2, 2, 6]
    assert [len(task.train[0]) for task in first] == [60, 60, 40]
    for one, other in zip(first, second, strict=True):
        assert one.held_out == other.held_out
        assert one.train != other.train


def test_tuning_keeps_the_weights_that_it_starts_from(pages: tasks.Pages) -> None:
    single = tasks.tasks_of(pages, 0)[-1]
    still = replace(pages, sizes=replace(FEW, tune_steps=0))
    start = pages.build(1)
    assert tasks.tuned(start, single, still, 0) == tasks.tuned(start, single, still, 0)
    with torch.no_grad():
        for weight in start.parameters():
            weight.zero_()  # it says the same of everything
    topics = torch.tensor(single.held_out[1])
    shares = [round(100 * float((topics == n).float().mean()), 3) for n in range(6)]
    assert round(tasks.tuned(start, single, still, 0), 3) in shares


def test_special_words_are_never_hidden(pages: tasks.Pages) -> None:
    assert WORDS[: len(SPECIAL)] == SPECIAL
    assert min(id for document in pages.train for line in document for id in line.ids) >= 4
