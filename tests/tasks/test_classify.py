"""The classifier: labels with probabilities, whatever the length of texts and their number."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from qkv.data import Framed
from qkv.errors import UserError
from qkv.model import Layout
from qkv.tasks import Classification, reading
from qkv.tasks.classify import Classifier
from tests.tasks.understand_tiny import SENTENCE, TOKENIZER, classifier

ROOM, PAIR_ROOM = 22, 21  # of 24 tokens


def text(length: int, seed: int = 0) -> str:
    """So many characters, which are tokens here."""
    draw = random.Random(seed * 1000 + length)
    return "".join(draw.choice("catdogfishbirdsnothe") for _ in range(length))


def said(model: Classifier, one: Framed) -> torch.Tensor:
    with torch.no_grad():
        return model.model(torch.tensor([one.tokens]), Layout(), torch.tensor([one.segments]))[
            0
        ].float()


TEXTS = ["the cat", ("a dog", "no fish"), "猫", "", ("the cat", ""), "birds", ("no fish", "a dog")]


def test_the_likeliest_label_is_given_with_the_probabilities_of_all() -> None:
    model = classifier()
    texts = [text for text in TEXTS if text]  # a blank one has no label
    for one, found in zip(texts, model.classify(texts), strict=True):
        [framed], _ = model.frame([(one,) if isinstance(one, str) else one])
        expected = said(model, framed).softmax(-1)
        assert list(found.probabilities) == ["a", "b", "c"]
        assert list(found.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-6)
        assert found.labels == (found.label,) == ("abc"[int(expected.argmax())],)
        assert found.probability == pytest.approx(float(expected.max()), abs=1e-6)
    assert len({found.label for found in model.classify(TEXTS)}) > 1


def test_a_tuple_is_a_pair() -> None:
    model = classifier()
    assert model.classify(("a dog", "no fish")) == model.classify([("a dog", "no fish")])[0]
    assert model.classify(("a dog", "no fish")) != model.classify(("no fish", "a dog"))
    assert model.classify(("a dog", "no fish")) != model.classify("a dog no fish")


@pytest.mark.parametrize("budget", [1, 60, 10_000])
@pytest.mark.parametrize("kind", ["class", "classes", "number"])
def test_batched_is_one_by_one(kind: Any, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier(("value",) if kind == "number" else ("a", "b", "c"), kind=kind)
    texts = [*TEXTS, text(50), text(23), text(22), (text(40), text(9)), text(100)]
    alone = [model.classify(one) for one in texts]
    monkeypatch.setitem(reading.BATCH_TOKENS, "cpu", budget)
    for found, expected in zip(model.classify(texts), alone, strict=True):
        assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-6)
        assert found.value == pytest.approx(expected.value, abs=1e-6)
        assert found.labels == expected.labels


def test_a_text_that_fits_is_read_whole() -> None:
    model = classifier()
    for length in (0, 1, ROOM - 1, ROOM):
        [framed], owners = model.frame([(text(length),)])
        assert framed.tokens[1:-1] == TOKENIZER.encode(text(length))
        assert owners == [0]


@pytest.mark.parametrize("overlap", [0, 5, 11, 64])
@pytest.mark.parametrize("length", [23, 40, 111])
def test_a_longer_text_is_read_in_windows_that_miss_nothing(length: int, overlap: int) -> None:
    model = classifier(overlap=overlap)
    framed, owners = model.frame([("the cat",), (text(length),), ("a dog",)])
    assert owners == [0, *[1] * (len(framed) - 2), 2]
    tokens = TOKENIZER.encode(text(length))
    windows = [one.tokens[1:-1] for one in framed[1:-1]]
    assert len(windows) > 1
    stride = ROOM - min(overlap, ROOM // 2)
    for number, window in enumerate(windows):
        assert window == tokens[number * stride : number * stride + ROOM]
    assert (len(windows) - 1) * stride + len(windows[-1]) == length
    assert (len(windows) - 2) * stride + ROOM < length  # none is needless


def test_a_long_text_has_the_mean_of_its_windows_probabilities() -> None:
    for kind, of in (("class", lambda x: x.softmax(-1)), ("classes", torch.sigmoid)):
        model = classifier(kind=kind, overlap=5)
        framed, _ = model.frame([(text(60),)])
        each = torch.stack([of(said(model, one)) for one in framed])
        assert len(each) == 4
        assert (each.max(0).values - each.min(0).values).max() > 0.1
        found = model.classify(text(60))
        assert list(found.probabilities.values()) == pytest.approx(each.mean(0).tolist(), abs=1e-5)


def halves(model: Classifier, first: int, second: int) -> tuple[list[int], list[int]]:
    """The tokens that are left of a pair of texts of such lengths."""
    [framed], owners = model.frame([(text(first, 1), text(second, 2))])
    assert owners == [0]
    assert len(framed.tokens) <= model.model.config.max_length
    end, separators = framed.tokens.index(TOKENIZER.eos_id), model.model.config.pair_separators
    return framed.tokens[1:end], framed.tokens[end + separators : -1]


PAIRED = {separators: classifier(sizes={"pair_separators": separators}) for separators in (1, 2)}


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from([1, 2]))
def test_a_pair_loses_the_end_of_its_longer_text_and_no_more_than_it_must(
    first: int, second: int, separators: int
) -> None:
    model = PAIRED[separators]
    room = PAIR_ROOM + 1 - separators
    one, other = halves(model, first, second)
    assert one == TOKENIZER.encode(text(first, 1))[: len(one)]
    assert other == TOKENIZER.encode(text(second, 2))[: len(other)]
    assert len(one) + len(other) == min(first + second, room)
    # The library that `transformers` cuts with
    cutter = Tokenizer(WordLevel({"a": 0}, "a"))
    cutter.pre_tokenizer = WhitespaceSplit()
    cutter.enable_truncation(room)
    places = cutter.encode("a " * first, "a " * second).sequence_ids
    assert [len(one), len(other)] == [places.count(0), places.count(1)]


def test_thresholds_decide_which_of_many_classes_are_given() -> None:
    model = classifier(kind="classes", threshold=0.4)
    for one in filter(None, TEXTS):
        found = model.classify(one)
        chances = found.probabilities
        for threshold in (None, 0.0, 0.4, 0.7, 1.0):
            least = 0.4 if threshold is None else threshold
            given = model.classify(one, threshold=threshold).labels
            assert set(given) == {label for label in "abc" if chances[label] >= least}
            assert list(given) == sorted(given, key=lambda label: -chances[label])
    just = min(model.classify("the cat").probabilities.values())
    assert len(model.classify("the cat", threshold=just).labels) == 3  # at least, not more than
    nothing = model.classify("the cat", threshold=1.0)
    assert (nothing.labels, nothing.label, nothing.probability) == ((), "", None)
    with pytest.raises(UserError, match=r"threshold is 1\.5, but must be a probability"):
        model.classify("the cat", threshold=1.5)
    for kind, what in (("class", "the one likeliest class"), ("number", "a number")):
        other = classifier(("value",) if kind == "number" else ("a", "b"), kind=kind)
        with pytest.raises(UserError, match=f"gives {what}; threshold is for several classes"):
            other.classify("the cat", threshold=0.3)
    everything = model.classify("the cat", threshold=0.0)
    assert everything.label == "|".join(everything.labels)
    assert everything.probability == max(everything.probabilities.values())


def test_probabilities_of_many_classes_are_one_by_one() -> None:
    model = classifier(kind="classes")
    [framed], _ = model.frame([("the cat",)])
    found = model.classify("the cat").probabilities
    assert list(found.values()) == pytest.approx(torch.sigmoid(said(model, framed)).tolist(), 1e-5)
    assert sum(found.values()) != pytest.approx(1)


def test_a_number_is_in_the_unit_of_the_examples() -> None:
    plain = classifier(("value",), kind="number").classify("the cat")
    scaled = classifier(("value",), kind="number", mean=100.0, deviation=20.0).classify("the cat")
    assert plain.labels == ()
    assert plain.probability is None
    assert scaled.value == pytest.approx(100 + 20 * plain.value, abs=1e-4)
    assert float(scaled.label) == pytest.approx(scaled.value, rel=1e-5)


def test_large_numbers_are_written_out() -> None:
    assert Classification((), {}, 12345.5).label == "12345.5"
    assert Classification((), {}, 0.25).label == "0.25"


def test_texts_that_cannot_be_read_are_named() -> None:
    model = classifier()
    with pytest.raises(UserError, match="reads one text or a pair, not 3 texts"):
        model.classify([("a", "b", "c")])
    with pytest.raises(UserError, match="Text 2 holds bytes that are not UTF-8"):
        model.classify([("a", "b"), ("c", "\udcff")])


def test_progress_counts_texts_and_not_their_windows() -> None:
    told: list[int] = []
    classifier().classify([*TEXTS, text(500), SENTENCE], progress=told.append)
    assert sum(told) == len(TEXTS) + 2


def test_pairs_are_not_taken_for_texts_nor_texts_for_pairs() -> None:
    single, paired = classifier(n_texts=1), classifier(n_texts=2)
    assert single.classify("the cat") == classifier().classify("the cat")
    with pytest.raises(UserError, match="to label single texts alone; give one at a time"):
        single.classify(["the cat", ("the cat", "a dog")])
    with pytest.raises(UserError, match="to label pairs of texts alone; give two at a time"):
        paired.classify("the cat")


def test_a_model_without_room_for_text_is_refused() -> None:
    for length in (1, 2):
        with pytest.raises(UserError, match=f"max_length {length} has no room for text beside"):
            classifier(sizes={"max_length": length})
    short = classifier(sizes={"max_length": 4})
    assert short.classify("the cat").label in "abc"
    with pytest.raises(UserError, match="max_length 4 has no room for a pair"):
        short.classify(("the cat", "a dog"))
