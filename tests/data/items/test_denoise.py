"""Spoilt text: counts and layout as the papers have them, and nothing lost."""

from collections import Counter
from itertools import pairwise
from math import comb, factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import DenoiseConfig
from qkv.data import IGNORE, Draw, Noise, NoisyItems, Passages, Ragged, Tokens
from qkv.data.items import denoise
from tests.data.helpers import SPECIAL, vocabulary

MASK = 4
SENTINELS = np.arange(10, 70, dtype=np.int32)[::-1]  # as in T5's vocabulary, the first comes last
TEXT, N_TOKENS, STOP = 100, 1100, 7
"""Text has ids from 100 on; those that end in 7 end a sentence."""
IDS = np.arange(N_TOKENS)
VOCABULARY = vocabulary(IDS < TEXT, ends_sentence=(IDS >= TEXT) & (IDS % 10 == STOP))
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=6)
SHARES = st.floats(0.01, 0.9)
MEANS = st.floats(1.5, 20)
SEEDS = st.integers(0, 1000)
KINDS = ["spans", "infill"]


def noise(kind: str = "spans", **settings) -> Noise:  # type: ignore[no-untyped-def]
    marks = SENTINELS if kind == "spans" else np.array([MASK], np.int32)
    return Noise(DenoiseConfig(kind=kind, sentinels=60, **settings), marks)  # type: ignore[arg-type]


def texts_of(lengths: list[int], seed: int = 0) -> Ragged:
    random = np.random.default_rng(seed)
    return Ragged.of([random.integers(TEXT, N_TOKENS, length).tolist() for length in lengths])


def spoilt(made: Noise, texts: Ragged, seed: int = 0) -> tuple[Ragged, Ragged]:
    return made(texts, np.random.default_rng(seed))


def rows(side: Ragged) -> list[list[int]]:
    return [side[number].tolist() for number in range(len(side))]


def corpus(n: int = 60, seed: int = 0, longest: int = 50) -> Tokens:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, n)
    return Tokens.of([random.integers(TEXT, N_TOKENS, size).tolist() for size in lengths], SPECIAL)


def noisy(tokens: Tokens, kind: str = "spans", length: int = 32, **settings) -> NoisyItems:  # type: ignore[no-untyped-def]
    return NoisyItems(Passages(tokens, SPECIAL, VOCABULARY, length), noise(kind, **settings))


def mended(source: list[int], target: list[int]) -> list[int]:
    """Put the spans that a target tells where their sentinels stand."""
    order = SENTINELS.tolist()
    told: dict[int, list[int]] = {}
    for token in target:
        if token in order:
            assert token == order[len(told)]
            told[token] = []
        else:
            told[order[len(told) - 1]].append(token)
    text: list[int] = []
    for token in source:
        text += told.get(token, [token])
    return text


def hidden_and_spans(length: int, share: float, mean: float) -> tuple[int, int]:
    """As `random_spans_noise_mask` counts them."""
    hidden = min(max(round(length * share), 1), max(length - 1, 1))
    return hidden, min(max(round(hidden / mean), 1), max(length - hidden, 1))


@given(LENGTHS, SHARES, st.floats(1, 20), SEEDS)
def test_spans_are_counted_as_t5_does_and_give_the_text_back(
    lengths: list[int], share: float, mean: float, seed: int
) -> None:
    texts = texts_of(lengths)
    pairs = spoilt(noise(share=share, span_length=mean), texts, seed)
    for length, text, source, target in zip(
        lengths, rows(texts), rows(pairs[0]), rows(pairs[1]), strict=True
    ):
        hidden, n_spans = hidden_and_spans(length, share, mean)
        marks = [token for token in source if token < TEXT]
        assert marks == SENTINELS[:n_spans].tolist()
        assert len(source) == length - hidden + n_spans
        assert [token for token in target if token < TEXT] == SENTINELS[: n_spans + 1].tolist()
        assert len(target) == hidden + n_spans + 1
        assert target[0] == SENTINELS[0] and target[-1] == SENTINELS[n_spans]
        for one, other in (*pairwise(source), *pairwise(target)):
            assert one >= TEXT or other >= TEXT  # spans do not touch, and none is empty
        assert mended(source, target) == text


@given(LENGTHS, SHARES, MEANS, SEEDS)
def test_infilling_shows_what_it_does_not_hide_and_asks_for_all(
    lengths: list[int], share: float, mean: float, seed: int
) -> None:
    texts = texts_of(lengths)
    pairs = spoilt(noise("infill", share=share, span_length=mean), texts, seed)
    assert rows(pairs[1]) == rows(texts)
    for length, text, source in zip(lengths, rows(texts), rows(pairs[0]), strict=True):
        hidden, _ = hidden_and_spans(length, share, mean)
        shown = [token for token in source if token != MASK]
        assert len(shown) == length - hidden
        assert 1 <= len(source) - len(shown) <= hidden
        assert can_fill(source, text)


def can_fill(source: list[int], text: list[int]) -> bool:
    """Whether masks can be replaced by spans, empty ones too, so that the text comes out."""
    reached = {0}
    for token in source:
        if token == MASK:
            reached = set(range(min(reached), len(text) + 1))
        else:
            reached = {place + 1 for place in reached if text[place : place + 1] == [token]}
        if not reached:
            return False
    return len(text) in reached


@given(LENGTHS, SHARES, MEANS, st.sampled_from(KINDS), SEEDS)
def test_no_pair_is_longer_than_what_is_reserved_for_it(
    lengths: list[int], share: float, mean: float, kind: str, seed: int
) -> None:
    made = noise(kind, share=share, span_length=mean)
    source, target = made.sizes(np.array(lengths))
    pairs = spoilt(made, texts_of(lengths), seed)
    assert (pairs[0].lengths <= source).all() and (pairs[1].lengths == target).all()
    # With a frame of two tokens, both sides fit into what the text fits into.
    assert (source + 1 <= np.array(lengths) + 2).all()
    assert (target + 1 <= np.maximum(np.array(lengths) + 2, 4)).all()
    if kind == "spans":
        assert (pairs[0].lengths == source).all()


def test_a_layout_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Thank you for inviting me to your party last week": figure 2 of the paper on T5."""
    text = Ragged.of([list(range(101, 111)), [120, 121]])
    monkeypatch.setattr(denoise, "cut", lambda *_: np.array([2, 1, 1]))
    monkeypatch.setattr(denoise, "choose", lambda *_: np.array([2, 6, 0]))
    made = noise(share=0.3, span_length=1.5)
    assert [one.tolist() for one in made.counts(text.lengths)] == [[3, 1], [2, 1]]
    pairs = spoilt(made, text)
    x, y, z = SENTINELS[:3].tolist()
    assert rows(pairs[0]) == [[101, 102, x, 105, 106, 107, 108, y, 110], [x, 121]]
    assert rows(pairs[1]) == [[x, 103, 104, y, 109, z], [x, 120, y]]


def test_an_empty_span_is_a_mask_more(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Ragged.of([list(range(101, 107)), [120, 121]])
    sizes, counts = np.array([0, 3, 1]), np.array([2, 1])
    monkeypatch.setattr(denoise, "poisson", lambda *_: (sizes, counts))
    monkeypatch.setattr(denoise, "choose", lambda *_: np.array([1, 2, 1]))
    pairs = spoilt(noise("infill", share=0.5), text)
    assert rows(pairs[0]) == [[101, MASK, MASK, 105, 106], [120, MASK]]
    assert rows(pairs[1]) == rows(text)


def test_each_way_to_hide_two_spans_is_as_likely_as_the_others() -> None:
    """Four of nine tokens in two spans: three ways to cut these, fifteen ways to lay them out."""
    made = noise(share=0.44, span_length=2)
    n = 9000
    texts = Ragged.of([list(range(101, 110))] * n)
    ways = Counter(map(tuple, rows(spoilt(made, texts)[0])))
    assert len(ways) == 3 * comb(6, 2)
    expected = n / len(ways)
    assert sum((count - expected) ** 2 / expected for count in ways.values()) < 80  # of χ²(44)


def chance_of(number: int, mean: float) -> float:
    return float(np.exp(-mean) * mean**number / factorial(number))


@pytest.mark.parametrize("mean", [1.5, 3.0, 6.5])
def test_lengths_are_poisson_s(mean: float) -> None:
    made = noise("infill", share=0.3, span_length=mean)
    hidden, most = made.counts(np.full(50, 2000))
    sizes, counts = denoise.poisson(hidden, most, made.table, np.random.default_rng(1))
    ends = np.cumsum(counts)
    assert [part.sum() for part in np.split(sizes, ends[:-1])] == hidden.tolist() == [600] * 50
    drawn = np.delete(sizes, ends - 1)  # the last of each text takes what is left
    error = 4 * np.sqrt(mean / len(drawn))
    assert abs(drawn.mean() - mean) < error
    assert abs(drawn.var() - mean) < 5 * mean * np.sqrt(2.5 / len(drawn))
    for number in range(8):
        chance = chance_of(number, mean)
        error = 4 * np.sqrt(chance * (1 - chance) / len(drawn))
        assert abs((drawn == number).mean() - chance) < error, number
    # There is room for all but the rarest draws, and not much more.
    assert (counts == most).mean() < 0.2 and most[0] < 1.15 * 600 / mean + 2


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_hidden_alike_wherever_they_stand(kind: str) -> None:
    n, length, share = 4000, 40, {"spans": 0.15, "infill": 0.3}[kind]
    texts = Ragged.of([list(range(TEXT, TEXT + length))] * n)
    source = spoilt(noise(kind), texts)[0].tokens
    shown = np.bincount(source[source >= TEXT] - TEXT, minlength=length) / n
    assert abs(1 - shown.mean() - share) < 1e-9
    inner = shown[5:-5]
    assert np.abs(inner - inner.mean()).max() < 4.5 * np.sqrt(share / n)
    assert (1 - shown > 0.3 * share).all()  # fewer spans reach the ends


def test_marks_of_an_empty_text_are_never_asked_for() -> None:
    """A text of one token is hidden whole."""
    x, y = SENTINELS[:2].tolist()
    pairs = spoilt(noise(), Ragged.of([[101], [102]]))
    assert (rows(pairs[0]), rows(pairs[1])) == ([[x]] * 2, [[x, 101, y], [x, 102, y]])
    pairs = spoilt(noise("infill"), Ragged.of([[101]]))
    assert (rows(pairs[0]), rows(pairs[1])) == ([[MASK]], [[101]])


def sentences(text: list[int]) -> list[tuple[int, ...]]:
    found: list[list[int]] = [[]]
    for token in text:
        found[-1].append(token)
        if token % 10 == STOP:
            found.append([])
    return [tuple(one) for one in found if one]


@given(st.integers(0, 50), st.integers(1, 30))
def test_sentences_change_places_and_stay_whole(seed: int, n: int) -> None:
    tokens = corpus(n, seed)
    plain, mixed = (
        noisy(tokens, "infill", share=0.01, span_length=1000, permute_sentences=flag)
        for flag in (False, True)
    )
    indices = range(len(plain))
    random = np.random.default_rng(seed)
    pairs = mixed.draw(indices, random)
    texts = rows(pairs[1])
    assert texts == rows(plain.draw(indices, random)[1])
    for source, text in zip(rows(pairs[0]), texts, strict=True):
        # One token is hidden in each, and the rest is some order of the sentences.
        whole = Counter(sentences(text))
        place = source.index(MASK)
        missing = list((Counter(text) - Counter(source)).elements())
        assert len(missing) == 1 and source.count(MASK) == 1
        ordered = [*source[:place], *missing, *source[place + 1 :]]
        last = next(iter(reversed(sentences(text))))
        if last[-1] % 10 == STOP:  # else the last one runs on into its neighbour
            assert Counter(sentences(ordered)) == whole
        else:
            assert Counter(ordered) == Counter(text)


def test_all_orders_of_sentences_occur_alike() -> None:
    documents = [[101, 107, 111, 117, 121, 127]] * 3000
    made = noisy(Tokens.of(documents, SPECIAL), "infill", share=0.01, permute_sentences=True)
    starts = [
        tuple(token for token in source if token % 10 == STOP)
        for source in rows(made.draw(range(3000), np.random.default_rng(5))[0])
    ]
    whole = [order for order in starts if len(order) == 3]
    counts = Counter(whole)
    assert len(counts) == 6 and len(whole) > 1000
    expected = len(whole) / 6
    assert max(abs(count - expected) for count in counts.values()) < 4.5 * np.sqrt(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_may_begin_with_a_token_of_their_own(kind: str) -> None:
    plain = noisy(corpus(), kind)
    led = NoisyItems(plain.passages, plain.noise, first=[9])
    one, other = (made.draw([3, 1, 2], np.random.default_rng(0)) for made in (plain, led))
    for side, longer in ((one[0], other[0]), (one[1], other[1])):
        assert rows(longer) == [[9, *ids] for ids in rows(side)]
    assert (led.source_sizes == plain.source_sizes + 1).all()
    assert (led.target_sizes == plain.target_sizes + 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_padded_and_packed_batches_hold_the_same_pairs(kind: str) -> None:
    items = noisy(corpus(), kind)
    indices, draw = np.arange(5), Draw(seed=5, epoch=1)
    for shape in (None, items.packed_shape(512)):
        batch = items.batch(indices, draw, shape)
        source, target = items.draw(indices, draw.random())
        assert batch.source is not None
        for side, texts in ((batch.source, source), (batch.target, target)):
            real = side.tokens[side.tokens != SPECIAL.pad]
            assert len(real) == len(texts.tokens) + 5  # EOS, or BOS
        labels = batch.labels[batch.labels != IGNORE].tolist()
        assert labels == [id for ids in rows(target) for id in [*ids, SPECIAL.eos]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_batch_has_as_many_tokens_as_asked_for_on_its_wider_side(kind: str) -> None:
    shape = noisy(corpus(1600), kind).packed_shape(8192)
    sizes = shape.source_tokens, shape.target_tokens
    assert 0.95 * 8192 < max(sizes) < 1.1 * 8192
    assert (sizes[0] > 2 * sizes[1]) == (kind == "spans")
