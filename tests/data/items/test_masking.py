from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import MaskConfig
from qkv.data import Ragged
from qkv.data.items.masking import Masked, Masker, most_masked

N_TOKENS, MASK = 60, 4
SPECIAL = np.arange(N_TOKENS) < 6  # 5 is one that nobody uses
SEQUENCES = st.lists(st.lists(st.integers(0, N_TOKENS - 1), max_size=40), min_size=1, max_size=8)
UNITS = st.sampled_from(["token", "word", "span"])
SHARES = st.sampled_from([0.01, 0.15, 0.3, 0.5, 0.9])


def starts(tokens: np.ndarray) -> np.ndarray:
    """Two of three ordinary tokens start a word."""
    return (tokens % 3 > 0) | SPECIAL[tokens]


def masker(**settings) -> Masker:  # type: ignore[no-untyped-def]
    return Masker(MaskConfig(**settings), MASK, SPECIAL, starts)


def random_sequences(n: int, length: int) -> Ragged:
    random = np.random.default_rng(0)
    return Ragged.of([[2, *random.integers(6, N_TOKENS, length), 3] for _ in range(n)])


def hidden_flags(sequences: Ragged, masked: Masked) -> list[np.ndarray]:
    """For each sequence: which of its tokens are hidden."""
    flags = np.zeros(len(sequences.tokens), np.bool_)
    flags[masked.positions] = True
    return np.split(flags, sequences.offsets[1:-1])


def words_of(tokens: np.ndarray) -> list[list[int]]:
    """The places of each word, by hand."""
    words: list[list[int]] = []
    before = True
    for place, token in enumerate(tokens.tolist()):
        if token >= 6:
            if before or token % 3:
                words.append([])
            words[-1].append(place)
        before = token < 6
    return words


def budget(tokens: np.ndarray, share: float) -> int:
    n_ordinary = int((~SPECIAL[tokens]).sum())
    return max(1, round(share * n_ordinary)) if n_ordinary else 0


@given(SEQUENCES, UNITS, SHARES, st.integers(0, 99))
def test_what_is_hidden_is_known_and_all_else_stays(
    lists: list[list[int]], units: str, share: float, seed: int
) -> None:
    sequences = Ragged.of(lists)
    before = sequences.tokens.copy()
    masked = masker(units=units, share=share, random=0.3, kept=0.3)(
        sequences, np.random.default_rng(seed)
    )
    assert (sequences.tokens == before).all()
    assert (masked.tokens.dtype, masked.positions.dtype) == (np.int32, np.int64)
    assert masked.labels.dtype == np.int64
    assert (np.diff(masked.positions) > 0).all()
    assert (masked.labels == before[masked.positions]).all()
    assert not SPECIAL[masked.labels].any()
    rest = np.delete(np.arange(len(before)), masked.positions)
    assert (masked.tokens[rest] == before[rest]).all()
    now = masked.tokens[masked.positions]
    assert (~SPECIAL[now] | (now == MASK)).all()
    assert len(masked.positions) <= most_masked(len(before), len(sequences), share)


@given(SEQUENCES, SHARES, st.integers(0, 99))
def test_each_sequence_hides_its_exact_share_of_tokens(
    lists: list[list[int]], share: float, seed: int
) -> None:
    sequences = Ragged.of(lists)
    masked = masker(share=share)(sequences, np.random.default_rng(seed))
    counts = [int(flags.sum()) for flags in hidden_flags(sequences, masked)]
    assert counts == [
        budget(tokens, share) for tokens in map(sequences.__getitem__, range(len(lists)))
    ]


@given(SEQUENCES, st.sampled_from(["word", "span"]), SHARES, st.integers(0, 99))
def test_words_are_hidden_wholly_until_none_fits_in(
    lists: list[list[int]], units: str, share: float, seed: int
) -> None:
    sequences = Ragged.of(lists)
    masked = masker(units=units, share=share)(sequences, np.random.default_rng(seed))
    for number, flags in enumerate(hidden_flags(sequences, masked)):
        words = words_of(sequences[number])
        most = budget(sequences[number], share)
        room = most - int(flags.sum())
        assert room >= 0
        assert flags.any() == bool(words)
        if not words or min(map(len, words)) > most:
            assert room == 0  # single tokens then
            continue
        shown = [word for word in words if not flags[word].any()]
        assert all(flags[word].all() for word in words if word not in shown)
        assert all(len(word) > room for word in shown)


@pytest.mark.parametrize("units", ["token", "word", "span"])
def test_of_ten_masked_tokens_one_is_random_and_one_is_kept(units: str) -> None:
    sequences = random_sequences(400, 100)
    masked = masker(units=units)(sequences, np.random.default_rng(1))
    now = masked.tokens[masked.positions]
    n_hidden = len(now)
    assert n_hidden == 400 * 15
    # A random token is the old one once in as many as there are.
    chances = {"mask": 0.8, "kept": 0.1 + 0.1 / 54, "random": 0.1 - 0.1 / 54}
    counts = {"mask": (now == MASK).sum(), "kept": (now == masked.labels).sum()}
    counts["random"] = n_hidden - counts["mask"] - counts["kept"]
    n_draws = n_hidden / (4 if units == "span" else 1)  # spans are drawn for as a whole
    for name, chance in chances.items():
        error = 4 * np.sqrt(chance * (1 - chance) / n_draws)
        assert abs(counts[name] / n_hidden - chance) < error, name


def test_random_tokens_are_all_ordinary_ones_alike() -> None:
    sequences = random_sequences(200, 100)
    masked = masker(random=1, kept=0, share=0.9)(sequences, np.random.default_rng(2))
    counts = np.bincount(masked.tokens[masked.positions], minlength=N_TOKENS)
    assert (counts[SPECIAL] == 0).all()
    expected = len(masked.positions) / (~SPECIAL).sum()
    assert np.abs(counts[~SPECIAL] - expected).max() < 5 * np.sqrt(expected)


@pytest.mark.parametrize(("random", "kept"), [(1, 0), (0, 1), (0, 0)])
def test_the_three_ways_can_each_be_the_only_one(random: float, kept: float) -> None:
    sequences = random_sequences(20, 50)
    masked = masker(random=random, kept=kept)(sequences, np.random.default_rng(3))
    now = masked.tokens[masked.positions]
    assert (now == MASK).all() == (random == kept == 0)
    assert (now == masked.labels).all() == (kept == 1)
    assert (now != MASK).all() == (random + kept == 1)


@pytest.mark.parametrize("units", ["token", "word", "span"])
def test_each_place_is_as_likely_as_the_others(units: str) -> None:
    words_only = replace(masker(units=units), word_starts=lambda tokens: tokens >= 0)
    sequences = random_sequences(3000, 20)
    masked = words_only(sequences, np.random.default_rng(4))
    counts = np.bincount(masked.positions % 22, minlength=22)
    assert counts.sum() == 3000 * 3 and counts[0] == counts[21] == 0
    if units == "span":
        counts[1:4] = counts[4]  # spans grow to the right: the first places are rarer
        assert counts[1:21].max() / counts[1:21].min() < 1.3
    else:
        assert np.abs(counts[1:21] - 450).max() < 4 * np.sqrt(450)


def test_spans_are_runs_of_words_of_at_most_the_longest_and_of_the_mean_asked_for() -> None:
    # So few are hidden in so long a sequence that spans hardly ever touch.
    sequences = random_sequences(60, 2000)
    settings = {"units": "span", "share": 0.01, "span_length": 3.0, "longest_span": 4}
    masked = masker(random=0, kept=0, **settings)(sequences, np.random.default_rng(5))
    lengths: list[int] = []
    for number, flags in enumerate(hidden_flags(sequences, masked)):
        words = words_of(sequences[number])
        assert all(flags[word].all() == flags[word].any() for word in words)
        runs = groupby(words, key=lambda word: bool(flags[word[0]]))
        lengths += [len(list(run)) for is_hidden, run in runs if is_hidden]
    touching = sum(length > 4 for length in lengths)
    assert touching < 0.03 * len(lengths)
    chances = (2 / 3) ** np.arange(4)
    mean = (np.arange(1, 5) * chances).sum() / chances.sum()
    # The last span of a sequence is cut to what is left to hide.
    assert abs(np.mean(lengths) - mean) < 0.3
    assert [lengths.count(n) > lengths.count(n + 1) for n in (1, 2)] == [True, True]


def test_a_span_is_hidden_in_one_way() -> None:
    sequences = random_sequences(100, 400)
    settings = {"units": "span", "share": 0.02, "random": 0.3, "kept": 0.3, "longest_span": 3}
    masked = masker(**settings)(sequences, np.random.default_rng(6))
    now = masked.tokens[masked.positions]
    neighbours = np.flatnonzero(np.diff(masked.positions) == 1)
    is_mask = now == MASK
    alike = is_mask[neighbours] == is_mask[neighbours + 1]
    assert len(neighbours) > 300
    assert alike.mean() > 0.9  # the others are spans that touch


def test_spans_do_not_reach_across_special_tokens_or_into_the_next_sequence() -> None:
    sequences = Ragged.of([[7, 3, 10], [13], [14]] * 300)
    settings = {"units": "span", "share": 0.9, "span_length": 10.0, "random": 0.5, "kept": 0}
    masked = masker(**settings)(sequences, np.random.default_rng(7))
    assert masked.labels.tolist() == [7, 10, 13, 14] * 300
    is_mask = masked.tokens[masked.positions] == MASK
    alike = np.reshape(is_mask == np.roll(is_mask, -1), (300, 4)).mean(axis=0)
    assert np.abs(alike - 0.5).max() < 4 * np.sqrt(0.25 / 300)  # each is drawn for by itself


def test_sequences_without_anything_to_hide() -> None:
    for units in ("token", "word", "span"):
        for lists in ([[2, 3], [], [2, 3]], [[]]):
            sequences = Ragged.of(lists)
            masked = masker(units=units)(sequences, np.random.default_rng(0))
            assert masked.tokens.tolist() == sequences.tokens.tolist()
            assert len(masked.positions) == len(masked.labels) == 0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=50), SHARES)
def test_the_bound_holds_and_is_no_more_than_it_must_be(lengths: list[int], share: float) -> None:
    hidden = sum(max(1, round(share * length)) for length in lengths)
    bound = most_masked(sum(lengths), len(lengths), share)
    assert hidden <= bound <= min(sum(lengths), share * sum(lengths) + len(lengths))
