from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import MaskConfig, TokenizerConfig
from qkv.data import (
    IGNORE,
    Batch,
    Draw,
    MaskedItems,
    Masker,
    Passages,
    Specials,
    Stream,
    Tokens,
    read_lines,
)
from qkv.data.items.passages import Drawn, PairKind
from qkv.errors import UserError
from qkv.text import Vocabulary, train_tokenizer
from tests.data.helpers import SPECIAL, vocabulary

MASK = 4
PAIRS: list[PairKind] = ["none", "next", "order"]
KINDS = 20
"""Ids of a document are its own: 10 + 20·document + kind, and its kind says what a token is."""
N_TOKENS = 10 + KINDS * 300
KIND = (np.arange(N_TOKENS) - 10) % KINDS
TEXT = np.arange(N_TOKENS) >= 10
GLUED = TEXT & (KIND % 5 == 0)
VOCABULARY = vocabulary(
    ~TEXT, starts_word=~GLUED, glued=GLUED, ends_sentence=TEXT & (KIND % 10 == 7)
)
DOCUMENTS = st.lists(st.lists(st.integers(0, KINDS - 1), max_size=40), min_size=1, max_size=8)
Documents = list[list[int]]


def ids_of(kinds: Documents) -> Documents:
    return [[10 + KINDS * number + kind for kind in one] for number, one in enumerate(kinds)]


def corpus(kinds: Documents, bos: bool = True) -> Tokens:
    return Tokens.of(ids_of(kinds), SPECIAL, bos)


def random_corpus(n: int) -> Tokens:
    random = np.random.default_rng(0)
    lengths = random.lognormal(np.log(30), 0.7, n).astype(int)
    return corpus([random.integers(0, KINDS, length).tolist() for length in lengths])


def masker(**values) -> Masker:  # type: ignore[no-untyped-def]
    return Masker(MaskConfig(**values), MASK, VOCABULARY.special, VOCABULARY.word_starts)


def texts(passages: Passages) -> list[list[int]]:
    framed = passages.take(range(len(passages)))
    rows = [framed[index].tolist() for index in range(len(framed))]
    assert all((row[0], row[-1]) == (SPECIAL.bos, SPECIAL.eos) for row in rows)
    return [row[1:-1] for row in rows]


def ends_sentence(text: list[int], place: int) -> bool:
    """Whether a sentence ends right before a place."""
    return bool(VOCABULARY.ends_sentence[text[place - 1]] and VOCABULARY.starts_word[text[place]])


def cut_by_hand(text: list[int], room: int) -> list[list[int]]:
    found: list[list[int]] = []
    while len(text) > room:
        last_third = [place for place in range(room, 0, -1) if place >= room - room // 3]
        at_words = [place for place in last_third if VOCABULARY.starts_word[text[place]]]
        at_sentences = [place for place in last_third if ends_sentence(text, place)]
        place = (at_sentences or at_words or [room])[0]
        found.append(text[:place])
        text = text[place:]
    return [*found, text] if text else found


@given(DOCUMENTS, st.booleans(), st.integers(3, 25))
def test_documents_are_cut_after_sentences_or_words(
    kinds: Documents, bos: bool, length: int
) -> None:
    passages = Passages(corpus(kinds, bos), SPECIAL, VOCABULARY, length)
    by_hand = [cut_by_hand(ids, length - 2) for ids in ids_of(kinds)]
    assert texts(passages) == [text for parts in by_hand for text in parts]
    assert passages.target_sizes.tolist() == [len(text) + 2 for text in texts(passages)]
    assert passages.target_sizes.max(initial=0) <= length
    assert np.diff(passages.documents).tolist() == [len(parts) for parts in by_hand if parts]


@pytest.mark.parametrize(
    ("kinds", "cut"),
    [
        ([1] * 20, 9),
        ([1] * 5 + [7] + [1] * 14, 6),  # after a sentence, in the last third of nine
        ([1] * 4 + [7] + [1] * 15, 9),  # too early
        ([1] * 6 + [5] * 14, 9),  # the last word is too long
        ([1] * 7 + [5] * 14, 6),  # before a word
        ([1] * 5 + [7] + [1] * 2 + [7, 5, 5] + [1] * 9, 6),  # no sentence ends within a word
    ],
)
def test_where_a_passage_of_nine_tokens_is_cut(kinds: list[int], cut: int) -> None:
    passages = Passages(corpus([kinds]), SPECIAL, VOCABULARY, 11)
    assert len(texts(passages)[0]) == cut


def split(drawn: Drawn, index: int, separators: int = 1) -> tuple[list[int], list[int]]:
    """The two texts of a sequence, after a look at what is around them."""
    assert drawn.segments is not None
    tokens = drawn.sequences[index].tolist()
    segments = drawn.segments[index].tolist()
    assert len(tokens) == len(segments) and set(segments) <= {0, 1}
    first = [token for token, segment in zip(tokens, segments, strict=True) if not segment]
    second = tokens[len(first) :]
    assert segments == [0] * len(first) + [1] * len(second)
    n_middle = separators if second else 1
    assert first[0] == SPECIAL.bos and first[-n_middle:] == [SPECIAL.eos] * n_middle
    assert not second or second[-1] == SPECIAL.eos
    first, second = first[1:-n_middle], second[:-1]
    assert TEXT[first].all() and TEXT[np.array(second, int)].all()
    return first, second


def assert_is_a_split(text: list[int], first: list[int], second: list[int]) -> None:
    assert first + second == text
    inner = range(1, len(text))
    if any(ends_sentence(text, place) for place in inner):
        assert ends_sentence(text, len(first))
    else:
        assert VOCABULARY.starts_word[text[len(first)]]


@settings(max_examples=50)
@given(DOCUMENTS, st.integers(1, 3), st.integers(0, 99))
@pytest.mark.parametrize("pairs", PAIRS[1:])
def test_pairs_are_what_their_labels_say(
    pairs: PairKind, kinds: Documents, separators: int, seed: int
) -> None:
    documents = ids_of([[1, 1], *kinds, [1]])
    tokens = Tokens.of(documents, SPECIAL)
    passages = Passages(tokens, SPECIAL, VOCABULARY, 20, pairs, separators)
    drawn = passages.draw(range(len(passages)), np.random.default_rng(seed))
    assert drawn.pairs is not None and drawn.pairs.dtype == np.int64
    for index, text in enumerate(texts(passages)):
        first, second = split(drawn, index, separators)
        label = drawn.pairs[index]
        if label == IGNORE:
            assert (first, second) == (text, [])
            assert not VOCABULARY.starts_word[text[1:]].any()  # one word
        elif label == 1:
            assert_is_a_split(text, first, second)
        elif pairs == "order":
            assert_is_a_split(text, second, first)
        else:
            assert_is_a_split(text, first, text[len(first) :])
            assert 1 <= len(second) <= len(text) - len(first)
            assert_is_of_another_document(second, text, documents)
        assert drawn.sequences.lengths[index] <= passages.target_sizes[index] <= 20


def assert_is_of_another_document(second: list[int], text: list[int], documents: Documents) -> None:
    (origin,) = {(id - 10) // KINDS for id in second}
    assert origin != (text[0] - 10) // KINDS
    found = documents[origin]
    places = [place for place in range(len(found)) if found[place:][: len(second)] == second]
    assert any(place == 0 or VOCABULARY.starts_word[found[place]] for place in places)


def test_false_seconds_begin_and_end_where_true_ones_do() -> None:
    random = np.random.default_rng(0)
    sentence = [1, 2, 3, 7]
    # Eleven sentences make a passage; the last one of a document has more than one here.
    kinds = [sentence * int(n) for n in random.integers(20, 60, 50) if n % 11 != 1]
    passages = Passages(corpus(kinds), SPECIAL, VOCABULARY, 50, "next")
    drawn = passages.draw(range(len(passages)), random)
    assert drawn.pairs is not None
    sizes, replaced = [], []
    for index, text in enumerate(texts(passages)):
        first, second = split(drawn, index)
        assert (KIND[second[0]], KIND[second[-1]]) == (1, 7)
        if not drawn.pairs[index]:
            sizes.append(len(second))
            replaced.append(len(text) - len(first))
    assert len(sizes) > 40
    assert sum(sizes) > 0.95 * sum(replaced)  # not shorter, or that would give them away


@pytest.mark.parametrize("pairs", PAIRS[1:])
def test_half_of_the_pairs_are_true(pairs: PairKind) -> None:
    passages = Passages(random_corpus(250), SPECIAL, VOCABULARY, 16, pairs)
    drawn = passages.draw(range(len(passages)), np.random.default_rng(0))
    assert drawn.pairs is not None
    real = drawn.pairs[drawn.pairs != IGNORE]
    assert len(real) > 500
    assert abs(real.mean() - 0.5) < 4 * np.sqrt(0.25 / len(real))


def test_other_documents_are_drawn_alike() -> None:
    passages = Passages(corpus([[1, 2, 3, 4]] * 5), SPECIAL, VOCABULARY, 16, "next")
    random = np.random.default_rng(0)
    counts = np.zeros(5, int)
    for _ in range(800):
        drawn = passages.draw([2], random)
        assert drawn.pairs is not None
        if not drawn.pairs[0]:
            start = split(drawn, 0)[1][0]
            assert KIND[start] != 1  # no second text begins a document
            counts[(start - 10) // KINDS] += 1
    expected = counts.sum() / 4
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3, 4]] - expected).max() < 4 * np.sqrt(expected)


def rows(batch: Batch) -> list[list[int]]:
    """The sequences of a batch that are not filler, with what was masked put back."""
    side, tokens = batch.target, batch.target.tokens.clone()
    assert batch.positions is not None
    tokens.view(-1)[batch.positions[: batch.n_labels]] = batch.labels[: batch.n_labels]
    if side.lengths is not None:
        return [row[:n].tolist() for row, n in zip(tokens, side.lengths.tolist(), strict=True)]
    assert side.offsets is not None
    bounds = pairwise(side.offsets.tolist())
    return [row for start, end in bounds if any(row := tokens[0, start:end].tolist())]


@pytest.mark.parametrize("units", ["token", "word", "span"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_epoch_holds_each_passage_once_with_its_share_masked(packed: bool, units: str) -> None:
    passages = Passages(random_corpus(120), SPECIAL, VOCABULARY, 24)
    stream = Stream(MaskedItems(passages, masker(units=units)), 256, packed=packed)
    batches = [step[0] for step in islice(stream.steps_from(), len(stream.plan(0)))]
    found = sorted(row for batch in batches for row in rows(batch))
    assert [row[1:-1] for row in found] == sorted(texts(passages))
    n_masked = sum(batch.n_labels for batch in batches)
    masks = [batch.target.tokens.flatten()[batch.positions] == MASK for batch in batches]
    assert abs(sum(int(flags.sum()) for flags in masks) / n_masked - 0.8) < 0.1
    exact = np.maximum(1, np.rint(0.15 * passages.lengths)).sum()
    assert n_masked == exact if units == "token" else 0.9 * exact < n_masked <= exact
    for batch in batches:
        assert batch.source is batch.pairs is batch.target.segments is None
        assert batch.n_labels == int((batch.labels != IGNORE).sum())
        assert not batch.positions[batch.n_labels :].any()


@pytest.mark.parametrize("pairs", PAIRS[1:])
@pytest.mark.parametrize("packed", [False, True])
def test_pairs_are_in_batches_as_they_are_drawn(packed: bool, pairs: PairKind) -> None:
    passages = Passages(random_corpus(60), SPECIAL, VOCABULARY, 24, pairs, 2)
    items = MaskedItems(passages, masker())
    indices, draw = np.arange(9), Draw(seed=1, epoch=2, number=3)
    shape = items.packed_shape(256) if packed else None
    batch = items.batch(indices, draw, shape)
    drawn = passages.draw(indices, draw.random())
    assert drawn.segments is not None and drawn.pairs is not None
    assert rows(batch) == [drawn.sequences[index].tolist() for index in range(9)]
    flat = batch.target.segments.flatten()
    assert flat.sum() == drawn.segments.tokens.sum()
    assert not flat[batch.target.tokens.flatten() == SPECIAL.pad].any()
    assert batch.pairs[:9].tolist() == drawn.pairs.tolist()
    assert (batch.pairs[9:] == IGNORE).all()


def test_what_is_drawn_depends_on_seed_epoch_and_number() -> None:
    items = MaskedItems(Passages(random_corpus(40), SPECIAL, VOCABULARY, 24, "order"), masker())

    def drawn(*draw: int) -> tuple[list[int], list[int]]:
        batch = items.batch(np.arange(30), Draw(*draw))
        return batch.positions.tolist(), batch.pairs.tolist()

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    for other in (drawn(0, 2, 3), drawn(1, 3, 3), drawn(1, 2, 4), drawn(1, 3, 2)):
        assert other[0] != drawn(1, 2, 3)[0] and other[1] != drawn(1, 2, 3)[1]


def test_false_seconds_need_another_document() -> None:
    for kinds in ([[1, 2, 3]], [[1, 2, 3], [], []]):
        with pytest.raises(UserError, match=r"pairs = 'next' .* but the text has 1; see"):
            Passages(corpus(kinds), SPECIAL, VOCABULARY, 16, "next")
    Passages(corpus([[1, 2, 3], [4]]), SPECIAL, VOCABULARY, 16, "next")


def test_real_sentences_stay_whole(shared_data: Path) -> None:
    lines = read_lines(shared_data / "tatoeba_en_zh" / "valid.en")
    tokenizer = train_tokenizer(lines, TokenizerConfig(vocab_size=800))
    special = Specials(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    text = " ".join(line for line in lines if line[-1] in ".?!")
    tokens = Tokens.of([tokenizer.encode(text)], special)
    passages = Passages(tokens, special, Vocabulary.of(tokenizer), 64, "order")
    found = passages.take(range(len(passages)))
    whole = [tokenizer.decode(found[index].tolist()) for index in range(len(found))]
    assert " ".join(whole) == text
    drawn = passages.draw(range(len(passages)), np.random.default_rng(0))
    assert drawn.segments is not None
    halves = [
        tokenizer.decode(drawn.sequences[index][drawn.segments[index] == segment].tolist())
        for index in range(len(passages))
        for segment in (0, 1)
    ]
    for texts in (whole, halves):
        assert np.mean([text[-1] in ".?!\"'" for text in texts]) > 0.95
