from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import MaskConfig, TokenizerConfig
from qkv.data import IGNORE, Batch, Mode, Specials, Tokens, read_lines
from qkv.data import passages as module
from qkv.data.corruption import Masker
from qkv.data.passages import Drawn, PairKind, Passages, PassageStream, passage_batches
from qkv.errors import UserError
from qkv.text import train_tokenizer
from qkv.text.vocabulary import Vocabulary

SPECIAL, MASK = Specials(pad=0, bos=2, eos=3), 4
MODES: list[Mode] = ["padded", "packed"]
PAIRS: list[PairKind] = ["none", "next", "order"]
KINDS = 20
"""Ids of a document are its own: 10 + 20·document + kind, and its kind says what a token is."""
N_TOKENS = 10 + KINDS * 300
KIND = (np.arange(N_TOKENS) - 10) % KINDS
TEXT = np.arange(N_TOKENS) >= 10
NOTHING = np.zeros(N_TOKENS, np.bool_)
VOCABULARY = Vocabulary(
    special=~TEXT,
    starts_word=~(TEXT & (KIND % 5 == 0)),
    glued=TEXT & (KIND % 5 == 0),
    within=NOTHING,
    ends_in_letter=NOTHING,
    ends_sentence=TEXT & (KIND % 10 == 7),
    ends_in_space=NOTHING,
    closes=NOTHING,
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


@given(DOCUMENTS, st.booleans(), st.integers(3, 25), st.integers(1, 30))
def test_documents_are_cut_after_sentences_or_words(
    kinds: Documents, bos: bool, length: int, scanned: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SCANNED", scanned)
        passages = Passages(corpus(kinds, bos), SPECIAL, VOCABULARY, length)
    by_hand = [cut_by_hand(ids, length - 2) for ids in ids_of(kinds)]
    assert texts(passages) == [text for parts in by_hand for text in parts]
    assert passages.target_sizes.tolist() == [len(text) + 2 for text in texts(passages)]
    assert passages.target_sizes.max(initial=0) <= length
    assert not passages.source_sizes.any()
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


@given(DOCUMENTS, st.booleans(), st.data())
def test_a_range_of_a_stream_gives_its_own_text_once(
    kinds: Documents, bos: bool, data: st.DataObject
) -> None:
    whole = corpus(kinds, bos)
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    passages = Passages(replace(whole, begin=begin, end=end), SPECIAL, VOCABULARY, 12)
    expected = [id for id in whole.read(begin, end - begin).tolist() if TEXT[id]]
    assert [id for text in texts(passages) for id in text] == expected
    for first, last in pairwise(passages.documents):
        rows = texts(passages)[first:last]
        assert len({(id - 10) // KINDS for row in rows for id in row}) == 1


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


def parts(batch: Batch, tensor: torch.Tensor) -> list[list[int]]:
    """What a tensor holds at the tokens of each sequence, be it filler."""
    side = batch.target
    if side.lengths is not None:
        return [
            row[:size].tolist() for row, size in zip(tensor, side.lengths.tolist(), strict=True)
        ]
    assert side.offsets is not None
    return [tensor[0, start:end].tolist() for start, end in pairwise(side.offsets.tolist())]


def rows(batch: Batch) -> list[list[int]]:
    """The sequences of a batch that are no filler, with what was hidden put back."""
    tokens = batch.target.tokens.clone()
    assert batch.places is not None
    tokens.view(-1)[batch.places[: batch.n_labels]] = batch.labels[: batch.n_labels]
    return [row for row in parts(batch, tokens) if any(row)]


def first_epoch(stream: PassageStream) -> list[Batch]:
    return [step[0] for step in islice(stream.steps_from(), len(stream.plan(0)))]


@pytest.mark.parametrize("units", ["token", "word", "span"])
@pytest.mark.parametrize("mode", MODES)
def test_an_epoch_holds_each_passage_once_with_its_share_hidden(mode: Mode, units: str) -> None:
    passages = Passages(random_corpus(120), SPECIAL, VOCABULARY, 24)
    batches = first_epoch(PassageStream(passages, masker(units=units), mode, 256))
    found = sorted(row for batch in batches for row in rows(batch))
    assert [row[1:-1] for row in found] == sorted(texts(passages))
    n_hidden = n_masks = 0
    for batch in batches:
        assert batch.source is batch.pairs is batch.target.segments is None
        assert batch.places is not None and batch.places.dtype == batch.labels.dtype == torch.int64
        assert batch.places.shape == batch.labels.shape
        assert batch.n_labels == int((batch.labels != IGNORE).sum())
        assert (batch.labels[: batch.n_labels] != IGNORE).all()
        assert not batch.places[batch.n_labels :].any()
        assert batch.places[: batch.n_labels].diff().min() > 0
        n_masks += int((batch.target.tokens.flatten()[batch.places] == MASK).sum())
        n_hidden += batch.n_labels
        assert batch.target.tokens.numel() <= 256
    assert abs(n_masks / n_hidden - 0.8) < 0.1
    exact = np.maximum(1, np.rint(0.15 * passages.lengths)).sum()
    assert n_hidden == exact if units == "token" else 0.9 * exact < n_hidden <= exact


@pytest.mark.parametrize("pairs", PAIRS[1:])
def test_packed_batches_have_one_shape(pairs: PairKind) -> None:
    passages = Passages(random_corpus(200), SPECIAL, VOCABULARY, 24, pairs)
    stream = PassageStream(passages, masker(pairs=pairs), "packed", 512)
    assert stream.shape is not None
    batches = first_epoch(stream)
    assert len({batch.labels.shape for batch in batches}) == 1
    assert len(batches[0].labels) % 8 == 0 and len(batches[0].labels) < 0.3 * 512
    for batch in batches:
        assert batch.pairs is not None and batch.target.segments is not None
        assert batch.target.tokens.shape == batch.target.segments.shape == (1, 512)
        assert len(parts(batch, batch.target.tokens)) == stream.shape.sequences
        assert batch.pairs.shape == (stream.shape.sequences,)
        n_real = len(rows(batch))
        assert (batch.pairs[:n_real] != IGNORE).float().mean() > 0.8
        assert (batch.pairs[n_real:] == IGNORE).all()


@pytest.mark.parametrize("pairs", PAIRS[1:])
@pytest.mark.parametrize("mode", MODES)
def test_pairs_lie_in_batches_as_they_are_drawn(mode: Mode, pairs: PairKind) -> None:
    passages = Passages(random_corpus(60), SPECIAL, VOCABULARY, 24, pairs, 2)
    stream = PassageStream(passages, masker(), mode, 256)
    for number, batch in enumerate(first_epoch(stream)):
        indices = stream.plan(0)[number]
        drawn = passages.draw(indices, module._random(0, 0, number, module.TRAINING))
        assert drawn.segments is not None and drawn.pairs is not None
        assert batch.target.segments is not None and batch.pairs is not None
        n_real = range(len(indices))
        assert rows(batch) == [drawn.sequences[index].tolist() for index in n_real]
        segments = parts(batch, batch.target.segments)[: len(indices)]
        assert segments == [drawn.segments[index].tolist() for index in n_real]
        assert not batch.target.segments[batch.target.tokens == SPECIAL.pad].any()
        assert batch.pairs.tolist()[: len(indices)] == drawn.pairs.tolist()
        assert mode == "packed" or len(batch.pairs) == len(indices)


def content(batch: Batch) -> tuple[object, ...]:
    side = batch.target
    tensors = (batch.labels, batch.places, batch.pairs, side.tokens, side.segments, side.offsets)
    return batch.n_labels, *(None if tensor is None else tensor.tolist() for tensor in tensors)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("mode", MODES)
def test_resuming_at_any_step_is_exact(mode: Mode, pairs: PairKind) -> None:
    def stream() -> PassageStream:
        passages = Passages(random_corpus(25), SPECIAL, VOCABULARY, 24, pairs)
        return PassageStream(passages, masker(), mode, 300, accumulate=2, seed=4)

    n_steps = len(stream().plan(0)) + 1  # two epochs and a little
    unbroken = [list(map(content, step)) for step in islice(stream().steps_from(0), n_steps)]
    assert stream().position(n_steps - 1)[0] == 2
    assert {len(step) for step in unbroken} == {2}
    for start in range(n_steps):
        resumed = islice(stream().steps_from(start), n_steps - start)
        assert [list(map(content, step)) for step in resumed] == unbroken[start:]


def test_what_is_drawn_depends_on_seed_epoch_and_number() -> None:
    passages = Passages(random_corpus(40), SPECIAL, VOCABULARY, 24, "order")
    indices = np.arange(30)

    def drawn(seed: int, epoch: int, number: int) -> tuple[list[int], list[int]]:
        stream = PassageStream(passages, masker(), "padded", 512, seed=seed)
        batch = stream.assemble(indices, (epoch, number))
        assert batch.places is not None and batch.pairs is not None
        return batch.places.tolist(), batch.pairs.tolist()

    one = drawn(1, 2, 3)
    assert drawn(1, 2, 3) == one
    for other in (drawn(0, 2, 3), drawn(1, 3, 3), drawn(1, 2, 4), drawn(1, 3, 2)):
        assert other[0] != one[0] and other[1] != one[1]


@pytest.mark.parametrize("pairs", PAIRS)
def test_validation_batches_hold_every_passage_and_never_change(pairs: PairKind) -> None:
    passages = Passages(random_corpus(60), SPECIAL, VOCABULARY, 24, pairs)
    batches = passage_batches(passages, masker(), 256, seed=5)
    assert sum(len(batch.target.tokens) for batch in batches) == len(passages)
    again = passage_batches(passages, masker(), 256, seed=5)
    assert list(map(content, batches)) == list(map(content, again))
    if pairs == "none":
        found = sorted(row for batch in batches for row in rows(batch))
        assert [row[1:-1] for row in found] == sorted(texts(passages))
    stream = PassageStream(passages, masker(), "padded", 256, seed=5)
    indices = module.validation_plan(passages, 256)[0]
    assert content(stream.assemble(indices, (0, 0))) != content(batches[0])


def test_false_seconds_need_another_document() -> None:
    for kinds in ([[1, 2, 3]], [[1, 2, 3], [], []]):
        with pytest.raises(UserError, match=r"pairs = 'next' .* but the text has 1; see"):
            Passages(corpus(kinds), SPECIAL, VOCABULARY, 16, "next")
    Passages(corpus([[1, 2, 3], [4]]), SPECIAL, VOCABULARY, 16, "next")


def test_a_length_without_room_is_refused() -> None:
    for length, pairs in ((2, "none"), (4, "next"), (4, "order")):
        with pytest.raises(ValueError, match="leaves no room"):
            Passages(corpus([[1], [2]]), SPECIAL, VOCABULARY, length, pairs, 2)  # type: ignore[arg-type]


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
